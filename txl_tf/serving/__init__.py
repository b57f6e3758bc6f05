"""Talks to a server of an exported model, and serves one for tests and demonstrations.

The public names are imported when they are first used: talking over REST needs
no gRPC, and naming an error no TensorFlow.
"""

from txl_tf.imports import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
