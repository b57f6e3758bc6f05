"""Data of fine-tuning: examples in files, metrics, predictions."""

from txl_tf.imports import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
