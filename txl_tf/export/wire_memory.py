"""Memory as a request carries it.

Shape letters used in this module:
  B rows, M memory length, D hidden width, L layers.
"""

import tensorflow as tf

from txl_tf.config.model_config import ModelConfig
from txl_tf.export import guards
from txl_tf.export.tracing import traced_once
from txl_tf.models.memory import Memory

STATES = "memory_states"
VALID_LENGTH = "memory_valid_length"


class WireMemory:
    """Takes memory in from a request and gives it back.

    On the wire it is one tensor `(B, L, M, D)` and the valid lengths `(B,)`.
    Hidden states are half of what keys and values would be. Rows that have
    read nothing may come as a tensor `(B, 0, 0, 0)`, which is nothing at all.

    Args:
        config: `ModelConfig`.
        dtype: `tf.DType` on the wire.

    Attributes:
        dtype: as given.
        memory_length: int. `M`; 0 of a model without recurrence.
        shape: tuple `(L, M, D)`.
        take: function of states, valid length and the number of rows that checks
            them and returns a `Memory` in float32.
        give: function of a `Memory` that returns a dict of the two outputs.
    """

    def __init__(self, config: ModelConfig, dtype: tf.DType) -> None:
        self.dtype = dtype
        self.memory_length = config.effective_memory_length
        self.shape = (config.num_layers, self.memory_length, config.hidden_dim)
        scalar = tf.TensorSpec([], tf.int32)
        self.take = traced_once(self._take, [*self.specs(), scalar])
        states = tf.TensorSpec([None, self.memory_length, config.hidden_dim])
        memory = Memory((states,) * config.num_layers, tf.TensorSpec([None], tf.int32))
        self.give = traced_once(self._give, [memory])

    def specs(self) -> list[tf.TensorSpec]:
        """What a signature takes; the shapes are for the guard to look at."""
        return [
            tf.TensorSpec(None, self.dtype, STATES),
            tf.TensorSpec(None, tf.int32, VALID_LENGTH),
        ]

    def _take(self, states, valid_length, num_rows):
        full = tf.stack([num_rows, *self.shape])
        nothing = tf.stack([num_rows, 0, 0, 0])
        meaning = "rows, layers, memory length, width; or nothing read yet"
        states = guards.of_shape(states, STATES, [full, nothing], meaning)
        states = tf.ensure_shape(states, [None] * 4)
        is_nothing = tf.equal(tf.size(states), 0)
        states = guards.finite(tf.cast(states, tf.float32), STATES)
        highest = tf.where(is_nothing, 0, self.memory_length)
        valid_length = guards.row_vector(valid_length, VALID_LENGTH, num_rows)
        valid_length = guards.in_range(valid_length, VALID_LENGTH, 0, highest)
        states = tf.cond(is_nothing, lambda: tf.zeros(full), lambda: states)
        states = tf.ensure_shape(states, [None, *self.shape])
        return Memory(tuple(tf.unstack(states, axis=1)), valid_length)

    def _give(self, memory):
        states = tf.stack(memory.states, axis=1)  # [B, L, M, D]
        states = guards.finite(states, f"next {STATES}")
        return {STATES: tf.cast(states, self.dtype), VALID_LENGTH: memory.valid_length}
