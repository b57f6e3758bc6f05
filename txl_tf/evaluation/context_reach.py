"""How far back a model's predictions depend on the text."""

import sys

from txl_tf.config.model_config import ModelConfig
from txl_tf.config.recurrent_config import RecurrentConfig


def context_reach(config: ModelConfig | RecurrentConfig) -> int:
    """Tokens before a token that can have any influence on what it predicts.

    A layer sees the memory and the segment before a position, of which each
    position was computed by the layer below from what that one saw: every
    layer adds its `M + T - 1` tokens, or `M` where all queries see equally far.

    Args:
        config: `ModelConfig` or `RecurrentConfig`.

    Returns:
        The number of tokens. More than any text has for a recurrent model.
    """
    if isinstance(config, RecurrentConfig):
        return sys.maxsize
    memory_length = config.effective_memory_length
    per_layer = memory_length if config.same_length else memory_length + config.segment_length - 1
    return config.num_layers * per_layer
