"""Weights and vocabularies of other implementations, in and out.

The public names are imported when they are first used, so that reading a
vocabulary does not start TensorFlow.
"""

from txl_tf.imports import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
