"""What the figures of an evaluation depend on besides the weights."""

from typing import Any

from txl_tf.config.evaluation_config import EvaluationConfig
from txl_tf.config.lstm_config import LSTMConfig
from txl_tf.config.model_config import ModelConfig
from txl_tf.config.qrnn_config import QRNNConfig


def evaluation_conditions(
    config: ModelConfig | LSTMConfig | QRNNConfig, evaluation: EvaluationConfig
) -> dict[str, Any]:
    """Names the settings that belong to every reported number.

    Args:
        config: configuration of the model that was evaluated.
        evaluation: `EvaluationConfig`.

    Returns:
        Dict of fields of `EvaluationResult`.
    """
    return {
        "segment_length": config.segment_length,
        "memory_length": config.effective_memory_length,
        "clamp_length": config.clamp_length,
        "same_length": config.same_length,
        "same_length_keys": config.same_length_keys if config.same_length else None,
        "dynamic_learning_rate": evaluation.dynamic_learning_rate,
        "dynamic_decay": evaluation.dynamic_decay,
        "dynamic_statistics_segments": evaluation.dynamic_statistics_segments,
    }
