"""Division of the rows of a batch over the replicas of a strategy.

Shape letters used in this module: B rows.
"""

from typing import Any

import numpy as np
from keras import ops

from txl_tf.imports import tensorflow as tf


class ReplicaRows:
    """Rows of a batch, which `split` gives to replicas and `join` puts together again.

    Every replica gets equally many rows, so rows of zeros are added at the end, and `join` drops
    their results. A strategy may span workers: each has the whole batch and all results. Without a
    strategy one device has all rows.
    """

    def __init__(self, strategy: "tf.distribute.Strategy | None", num_rows: int) -> None:
        self._strategy = strategy
        self.num_rows = num_rows
        num_replicas = 1 if strategy is None else strategy.num_replicas_in_sync
        self.rows_per_replica = -(-num_rows // num_replicas)
        self._num_padded = self.rows_per_replica * num_replicas - num_rows

    def split(self, arrays: tuple[np.ndarray, ...]) -> tuple[Any, ...]:
        """Returns arrays `(B, ...)` as tensors, or with a strategy as values per replica."""
        if self._strategy is None:
            return tuple(map(ops.convert_to_tensor, arrays))
        padded_arrays = [
            np.pad(array, [(0, self._num_padded), *[(0, 0)] * (array.ndim - 1)]) for array in arrays
        ]

        def part_of(context: tf.distribute.ReplicaContext) -> tuple[Any, ...]:
            first = context.replica_id_in_sync_group * self.rows_per_replica
            rows = slice(first, first + self.rows_per_replica)
            return tuple(tf.constant(array[rows]) for array in padded_arrays)

        return self._strategy.experimental_distribute_values_from_function(part_of)

    def join(self, values: Any) -> np.ndarray:
        """Returns the results of all replicas as one array `(B, ...)`."""
        if self._strategy is None:
            return np.asarray(values)
        if isinstance(self._strategy, tf.distribute.MultiWorkerMirroredStrategy):
            # Each worker only has the values of its own replicas.
            rows = self._strategy.gather(values, axis=0).numpy()
        else:
            parts = self._strategy.experimental_local_results(values)
            rows = np.concatenate([part.numpy() for part in parts])
        return rows[: self.num_rows]
