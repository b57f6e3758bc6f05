"""Configurations of small models, of which a test says only what matters to it."""

from typing import Any

import numpy as np

from txl_tf.config.model import ModelConfig


def small_config(
    segment_length: int,
    memory_length: int,
    *,
    vocabulary_size: int = 11,
    width: int = 8,
    num_heads: int = 2,
    **changes: Any,
) -> ModelConfig:
    """Two layers, whose heads share out the width and whose inner width is twice of it."""
    sizes = {
        "num_layers": 2,
        "head_dim": width // num_heads,
        "intermediate_dim": 2 * width,
        **changes,
    }
    return ModelConfig(
        vocabulary_size=vocabulary_size,
        hidden_dim=width,
        num_heads=num_heads,
        segment_length=segment_length,
        memory_length=memory_length,
        **sizes,
    )


def with_drawn_weights(model: Any, scale: float) -> Any:
    """Gives every weight of a model numbers that are large enough to matter; returns it."""
    for index, variable in enumerate(model.weights):
        drawn = np.random.default_rng(index).normal(scale=scale, size=variable.shape)
        variable.assign(drawn.astype("float32"))
    return model
