"""Corpora, tokenizers, prepared data sets, and readers that keep their tokens in order."""

from txl_tf.imports import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
