"""EleutherAI's lm-evaluation-harness on models of this project.

The names are imported on first use, because they need the extra `harness`.
"""

from txl_tf.imports import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
