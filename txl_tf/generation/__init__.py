"""Text generation with a trained model and its memory."""

from txl_tf.generation.session import GenerationSession, generate

__all__ = ["GenerationSession", "generate"]
