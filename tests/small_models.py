"""Small models and results; a test passes only the sizes that matter to it."""

import math
from typing import Any

import numpy as np

from txl_tf.config.model import ModelConfig
from txl_tf.evaluation.result import EvaluationResult


def small_config(
    segment_length: int,
    memory_length: int,
    *,
    vocabulary_size: int = 11,
    width: int = 8,
    num_heads: int = 2,
    **changes: Any,
) -> ModelConfig:
    """Two layers; heads share the width, and the inner width is twice the width."""
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


def arrays_of(model: Any) -> dict[str, np.ndarray]:
    """The weights of a model by path."""
    return {variable.path: variable.numpy() for variable in model.weights}


def with_drawn_weights(model: Any, scale: float) -> Any:
    """Gives every weight of a model numbers that are large enough to matter; returns it."""
    for index, variable in enumerate(model.weights):
        drawn = np.random.default_rng(index).normal(scale=scale, size=variable.shape)
        variable.assign(drawn.astype("float32"))
    return model


def small_result(**changes: Any) -> EvaluationResult:
    """Result of an evaluation of 12 tokens, with 2.5 bits for each."""
    fields = {
        "split": "valid",
        "step": 40,
        "total_nats": 30.0 * math.log(2.0),
        "num_tokens": 12,
        "num_bytes": 20.0,
        "num_characters": 15.0,
        "num_words": 5.0,
        "segment_length": 5,
        "memory_length": 7,
        "clamp_length": None,
        "same_length": False,
        "same_length_keys": None,
        "dtype_policy": "float32",
        "batch_size": 3,
        "warm_up_tokens": 0,
        "masks_documents": False,
        "dynamic_learning_rate": None,
        "dynamic_decay": None,
        "seconds": 0.5,
    }
    return EvaluationResult(**{**fields, **changes})
