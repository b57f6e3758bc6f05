"""Measurements between two loops of steps: statistics of the memory, ratio of the last update.

Shape letters used in this module: b rows of a replica, M memory length, D hidden width.
"""

import math
from collections.abc import Sequence

import keras
import tensorflow as tf

from txl_tf.distribution.replica_state import ReplicaState
from txl_tf.training.metrics import layer_tag

# A copy of all weights would not fit beside the largest models.
_MAX_SAMPLED = 1 << 16


class MemoryStatistics:
    """Valid length and norms of the memory of all rows, measured between two steps.

    Rows beyond `num_rows` of the global batch do not count.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, replica_memory: ReplicaState, num_rows: int
    ) -> None:
        self._strategy = strategy
        self._memory = replica_memory
        self._num_rows = num_rows
        self._layers = sorted(set(replica_memory.names) - {"valid_length"})
        self._sums = tf.function(self._summed, autograph=False)

    def measure(self) -> dict[str, float]:
        """Returns the figures by tag; with several workers all must call it.

        The states of recurrent models have no positions, and no figures.
        """
        if "valid_length" not in self._memory.names:
            return {}
        sums = self._strategy.reduce(
            tf.distribute.ReduceOp.SUM, self._strategy.run(self._sums), axis=None
        )
        filled, *norms = (float(each) for each in sums.numpy())
        figures = {"memory/valid_length": filled / self._num_rows}
        if filled:
            figures |= {
                layer_tag("memory/norm", layer): norm / filled for layer, norm in enumerate(norms)
            }
        return figures

    def _summed(self) -> tf.Tensor:
        """Sums this replica's filled positions, and their norms by layer."""
        memory = self._memory.read()
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        num_rows = self._memory.rows_per_replica
        places = tf.cast(replica, tf.int32) * num_rows + tf.range(num_rows)
        lengths = tf.where(places < self._num_rows, memory["valid_length"], 0)
        sums = [tf.reduce_sum(tf.cast(lengths, tf.float32))]
        for name in self._layers:
            states = tf.cast(memory[name], tf.float32)  # [b, M, D]
            memory_length = states.shape[1]
            is_filled = tf.range(memory_length) >= memory_length - lengths[:, None]
            norms = tf.norm(states, axis=2)
            sums.append(tf.reduce_sum(tf.where(is_filled, norms, 0.0)))
        return tf.stack(sums)


class UpdateRatio:
    """Norm of the change of all weights over the norm of the weights.

    It runs beside the training step without changing it. Of a variable with more than 65,536
    entries it samples evenly spaced rows.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, variables: Sequence[keras.Variable]
    ) -> None:
        self._strategy = strategy
        self._variables = list(variables)
        self._strides = [
            -(-math.prod(variable.shape) // _MAX_SAMPLED) for variable in self._variables
        ]
        self._read = tf.function(self._sampled, autograph=False)
        self._compare = tf.function(self._ratio, autograph=False)
        self._before: list[tf.Tensor] | None = None

    def remember(self) -> None:
        """Keeps the weights from before a step."""
        self._before = self._strategy.run(self._read)

    def measure(self) -> float:
        """Returns the ratio for the step since `remember`."""
        ratios = self._strategy.run(self._compare, args=(self._before,))
        self._before = None
        # The weights are the same on all replicas.
        return float(self._strategy.experimental_local_results(ratios)[0].numpy())

    def _sampled(self) -> list[tf.Tensor]:
        return [
            # Each keeps at least its first row.
            tf.cast(variable.value[:: min(stride, variable.shape[0])], tf.float32)
            if variable.shape
            else tf.cast(tf.identity(variable.value), tf.float32)
            for variable, stride in zip(self._variables, self._strides, strict=True)
        ]

    def _ratio(self, before: list[tf.Tensor]) -> tf.Tensor:
        changed = weighed = tf.constant(0.0)
        for variable, old, new in zip(self._variables, before, self._sampled(), strict=True):
            scale = math.prod(variable.shape) / math.prod(new.shape)
            changed += scale * tf.reduce_sum(tf.square(new - old))
            weighed += scale * tf.reduce_sum(tf.square(new))
        return tf.sqrt(tf.math.divide_no_nan(changed, weighed))
