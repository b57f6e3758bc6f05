"""Text generation with a trained model and its memory."""

from txl_tf.generation.decoding import Sampler
from txl_tf.generation.generate import generate
from txl_tf.generation.session import GenerationSession
from txl_tf.generation.session_file import SessionFile

__all__ = ["GenerationSession", "Sampler", "SessionFile", "generate"]
