"""Scores tokens as a model without memory has to: a whole window for each.

Shape letters used in this module: B rows, T window length.
"""

import numpy as np
import tensorflow as tf

from txl_tf.config.model_config import ModelConfig
from txl_tf.layers.token_id_check import check_token_ids
from txl_tf.models.transformer_xl import TransformerXL


class WindowScorer:
    """Scores the token after a window, and of the window nothing else.

    The evaluation of Al-Rfou et al. (2019) that Dai et al. (2019), Section
    4.4, compare with: the window moves on by one token and is processed from
    scratch, so that every prediction has the longest context.

    Args:
        model: `TransformerXL`.
        jit_compile: bool. Whether the step is compiled with XLA.
    """

    def __init__(self, model: TransformerXL, jit_compile: bool = True) -> None:
        self._model = model
        self._step = tf.function(self._score, jit_compile=jit_compile, autograph=False)

    def __call__(self, token_ids: np.ndarray, target_ids: np.ndarray) -> np.ndarray:
        """Scores a token.

        Args:
            token_ids: int32 array `(B, T)`. The window.
            target_ids: int32 array `(B,)`. The token after it.

        Returns:
            Nats: float32 array `(B,)`.

        Raises:
            ValueError: If an id is not in `[0, V)`.
        """
        check_token_ids(token_ids, self._model.config.vocabulary_size)
        check_token_ids(target_ids, self._model.config.vocabulary_size, "target_ids")
        return self._step(tf.constant(token_ids), tf.constant(target_ids)).numpy()

    def _score(self, token_ids: tf.Tensor, target_ids: tf.Tensor) -> tf.Tensor:
        memory = self._model.initial_memory(token_ids.shape[0], memory_length=0)
        hidden, _ = self._model(token_ids, memory)
        return self._model.negative_log_likelihood(hidden[:, -1:], target_ids[:, None])[:, 0]


def without_memory(config: ModelConfig, window_length: int) -> ModelConfig:
    """The model of Al-Rfou et al. (2019) with the sizes of another.

    Every layer learns positions of its own, and there is no recurrence.

    Args:
        config: `ModelConfig`.
        window_length: int. Positions that are learned.

    Returns:
        A `ModelConfig`.
    """
    return config.replace(
        position_encoding="learned",
        num_positions=window_length,
        recurrence=False,
        segment_length=window_length,
        memory_length=0,
        clamp_length=None,
        same_length=False,
        share_attention_biases=False,
    )
