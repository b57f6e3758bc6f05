"""Share of each layer's attention that goes to the memory, on one batch of text.

Shape letters used in this module: B rows, S segments, T segment length, M memory length, L layers.
"""

import math

import keras
import numpy as np
import tensorflow as tf

from txl_tf.config.model import ModelConfig
from txl_tf.evaluation.text_rows import EvaluationText
from txl_tf.models.memory import Memory

_NUM_ROWS = 4


class AttentionMass:
    """Measurement of the share of attention that each layer pays to its memory.

    It reads a few parts of a text until the memory is full or the part ends. In the last segment
    it averages the probability of all keys in memory over heads, queries and rows. With a
    strategy, every replica reads the same rows.
    """

    def __init__(self, model: keras.Model, strategy: tf.distribute.Strategy | None = None) -> None:
        self._model = model
        self._strategy = strategy
        self._step = tf.function(self._measure, autograph=False)

    @staticmethod
    def is_possible(config: object) -> bool:
        """True if a model has a memory that attention reads, and relative positions."""
        return (
            isinstance(config, ModelConfig)
            and config.effective_memory_length > 0
            and config.has_relative_positions
        )

    def __call__(self, text: EvaluationText) -> list[float] | None:
        """Returns the share of each layer; `None` if the text has less than two segments."""
        rows = self._rows(text)
        if rows is None:
            return None
        memory = self._model.initial_memory(rows.shape[0])
        shares = None
        for segment in np.split(rows, rows.shape[1] // self._model.config.segment_length, axis=1):
            arguments = tf.constant(segment), memory
            if self._strategy is None:
                shares, memory = self._step(*arguments)
                continue
            shares, memory = self._strategy.run(self._step, args=arguments)
        local = shares if self._strategy is None else self._first(shares)
        return [float(share) for share in local.numpy()]

    def _rows(self, text: EvaluationText) -> np.ndarray | None:
        """Reads int32 `(B, S * T)`, from evenly spaced places of the text."""
        config = self._model.config
        num_segments = math.ceil(config.effective_memory_length / config.segment_length) + 1
        num_rows = min(_NUM_ROWS, text.num_tokens // (2 * config.segment_length))
        if not num_rows:
            return None
        row_tokens = text.num_tokens // num_rows
        num_tokens = min(num_segments, row_tokens // config.segment_length) * config.segment_length
        starts = range(0, num_rows * row_tokens, row_tokens)
        rows = [text.read_tokens(start, start + num_tokens) for start in starts]
        return np.stack(rows).astype(np.int32)

    def _first(self, values: tf.Tensor) -> tf.Tensor:
        return self._strategy.experimental_local_results(values)[0]

    def _measure(self, token_ids: tf.Tensor, memory: Memory) -> tuple[tf.Tensor, Memory]:
        model = self._model
        hidden_states, next_memory = model.hidden_states(token_ids, memory)
        shares = []
        for layer, block in enumerate(model.blocks):
            arguments = model.attention_inputs(layer, hidden_states[layer], memory)
            probabilities = block.attention.attention_probabilities(**arguments)  # [B, N, T, K]
            memory_length = memory.states[layer].shape[1]
            in_memory = tf.reduce_sum(probabilities[..., :memory_length], axis=-1)
            shares.append(tf.reduce_mean(tf.cast(in_memory, tf.float32)))
        return tf.stack(shares), next_memory
