"""Reads one token per row, with keys and values of memory, within a graph.

Shape letters used in this module:
  B rows, M memory length, D hidden width, V vocabulary, L layers.
"""

from typing import Any

import tensorflow as tf

from txl_tf.inference.memory import KeyValueMemory
from txl_tf.inference.relative_model import RelativeModel
from txl_tf.models.memory import Memory
from txl_tf.models.transformer_xl import TransformerXL


class ProjectedSteps:
    """Memory is projected once, then every token is.

    Must be made where the model's weights are those of the graph at hand.
    Unlike `TokenModel`, it takes any number of rows, and it gives
    what each layer read, which is what memory is made of.

    Args:
        model: `TransformerXL` with `"transformer_xl"` or `"shaw"` positions.
        memory_length: int. `M`.
    """

    def __init__(self, model: TransformerXL, memory_length: int) -> None:
        self._model = model
        self._memory_length = memory_length
        self._projected = RelativeModel(model)
        self._position_keys = self._projected.position_keys(memory_length + 1)

    def begin(self, memory: Memory) -> KeyValueMemory:
        """The state before the first token."""
        return self._projected.project_memory(memory)

    def step(self, token_ids: tf.Tensor, state: KeyValueMemory) -> tuple[tf.Tensor, tf.Tensor, Any]:
        """Reads a token.

        Args:
            token_ids: int32 tensor `(B,)`.
            state: what `begin` or `step` returned.

        Returns:
            Tuple of the log-probabilities `(B, V)` of the next token, what the
            layers read `(L, B, D)`, and the next state.
        """
        mask_scores = self._projected.mask_scores(1, self._memory_length, state.valid_length)
        hidden = self._model.embedding(token_ids[:, None])  # [B, 1, D]
        inputs, next_keys, next_values = [], [], []
        for block, keys, values, distance_keys in zip(
            self._projected.blocks, state.keys, state.values, self._position_keys, strict=True
        ):
            inputs.append(hidden[:, 0])
            hidden, keys, values = block(hidden, keys, values, mask_scores, distance_keys)
            next_keys.append(keys[..., 1:])
            next_values.append(values[:, :, 1:])
        valid_length = tf.minimum(state.valid_length + 1, self._memory_length)
        state = KeyValueMemory(tuple(next_keys), tuple(next_values), valid_length)
        return self._model.log_probs_of(hidden)[:, 0], tf.stack(inputs), state
