"""Shares out the rows of an evaluation among replicas.

Shape letters used in this module: B rows, T segment length.
"""

from typing import Any

import numpy as np
import tensorflow as tf


class ReplicaRows:
    """Hands each replica its rows, and puts the rows of all together again.

    Rows that the replicas cannot share out equally are made up with empty
    ones, which `join` leaves out.

    Args:
        strategy: optional `tf.distribute.Strategy`. Defaults to `None`: one
            device.
        num_rows: int. Rows of all replicas together, `B`.
    """

    def __init__(self, strategy: tf.distribute.Strategy | None, num_rows: int) -> None:
        self._strategy = strategy
        self._num_rows = num_rows
        num_replicas = 1 if strategy is None else strategy.num_replicas_in_sync
        self.rows_per_replica = -(-num_rows // num_replicas)
        self._num_padded = self.rows_per_replica * num_replicas - num_rows

    def split(self, arrays: tuple[np.ndarray, ...]) -> tuple[Any, ...]:
        """Hands out rows.

        Args:
            arrays: tuple of arrays `(B, T)`.

        Returns:
            Tuple of tensors, or of values per replica.
        """
        if self._strategy is None:
            return tuple(map(tf.constant, arrays))
        padded = [np.pad(array, [(0, self._num_padded), (0, 0)]) for array in arrays]

        def part_of(context: tf.distribute.ReplicaContext) -> tuple[tf.Tensor, ...]:
            first = context.replica_id_in_sync_group * self.rows_per_replica
            rows = slice(first, first + self.rows_per_replica)
            return tuple(tf.constant(array[rows]) for array in padded)

        return self._strategy.experimental_distribute_values_from_function(part_of)

    def join(self, values: Any) -> np.ndarray:
        """Puts the rows of all replicas together.

        Args:
            values: tensor or values per replica, with an axis of rows first.

        Returns:
            Array `(B, ...)`.
        """
        if self._strategy is None:
            return values.numpy()
        if isinstance(self._strategy, tf.distribute.MultiWorkerMirroredStrategy):
            # Each worker has the values of its own replicas.
            rows = self._strategy.gather(values, axis=0).numpy()
        else:
            parts = self._strategy.experimental_local_results(values)
            rows = np.concatenate([part.numpy() for part in parts])
        return rows[: self._num_rows]
