"""Transformer-XL on TensorFlow, Keras 3 and Cloud TPU.

The public names are imported when they are first used, so that reading a
configuration does not start TensorFlow.
"""

from txl_tf.imports import lazy_names, register_with_keras
from txl_tf.processor_products import choose_processor_products

__version__ = "0.1.0"

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)

choose_processor_products()
register_with_keras()
