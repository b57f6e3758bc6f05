"""Transformer-XL on TensorFlow, Keras 3 and Cloud TPU.

The public names are imported when they are first used, so that reading a
configuration does not start TensorFlow.
"""

import os
import platform

from txl_tf.imports import lazy_names, register_with_keras

__version__ = "0.1.0"

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)

# oneDNN on every x86 processor, unless the user decides: by default TensorFlow uses it only with
# instructions such as AVX-512 VNNI; elsewhere batched products have a third of the speed.
if platform.machine().lower() in {"x86_64", "amd64"}:
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
register_with_keras()
