"""Statistics of the memory of a training run: filled length and norms of hidden states.

Shape letters used in this module: b rows of a replica, M memory length, D hidden width.
"""

import tensorflow as tf

from txl_tf.distribution.replica_state import ReplicaState
from txl_tf.training.dashboard import layer_tag


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
