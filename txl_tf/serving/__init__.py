"""Text server in the form of OpenAI's API, and a client of TensorFlow Serving."""

from txl_tf.imports import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
