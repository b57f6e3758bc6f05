"""Weights and vocabularies of other implementations, in and out.

The public names are imported on first use, so that reading a vocabulary does not import TensorFlow.
"""

from txl_tf.imports import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
