"""Transformer-XL on TensorFlow, Keras 3 and Cloud TPU.

The public names are imported when they are first used, so that reading a
configuration does not start TensorFlow.
"""

from txl_tf.imports import lazy_names

__version__ = "0.1.0"

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
