"""Text generation with a trained model and its memory."""

from txl_tf.generation.decoding import Sampler
from txl_tf.generation.session import GenerationSession, generate

__all__ = ["GenerationSession", "Sampler", "generate"]
