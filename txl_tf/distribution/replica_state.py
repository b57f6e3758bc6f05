"""State that every replica keeps for its own rows, on its own device."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from txl_tf.distribution.strategy import num_workers


class ReplicaState:
    """Variables that hold, on each replica, the state of its rows.

    Row `r` of the global batch belongs to replica `r // rows_per_replica`. The variables are read
    and written inside `strategy.run` without communication, and stay on the device between steps.
    TensorFlow cannot save such variables, so `to_global` packs all parts into arrays of the global
    batch, which any number of replicas can load. `row_specs` describe the state of one row. Rows
    beyond `num_rows` are padding of the last replicas.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        rows_per_replica: int,
        row_specs: Mapping[str, tf.TensorSpec],
        num_rows: int | None = None,
    ) -> None:
        self._strategy = strategy
        self._rows_per_replica = rows_per_replica
        self._num_padded_rows = rows_per_replica * strategy.num_replicas_in_sync
        self._num_rows = self._num_padded_rows if num_rows is None else num_rows
        if not 0 < self._num_rows <= self._num_padded_rows:
            raise ValueError(
                f"`num_rows` must be between 1 and the {self._num_padded_rows} rows of all "
                f"replicas. Received: num_rows={num_rows}"
            )
        self._has_several_workers = num_workers(strategy) > 1
        self._dtypes = {name: spec.dtype for name, spec in row_specs.items()}
        self._variables: dict[str, tf.Variable] = {}
        # Created once, because every new tf.function is traced again.
        self._read = tf.function(self.read, autograph=False)
        self._gather = tf.function(self._gathered, autograph=False)
        self._write = tf.function(self.write, autograph=False)
        with strategy.scope():
            for name, spec in row_specs.items():
                # ON_READ without aggregation: each replica assigns its own copy without
                # communication.
                self._variables[name] = tf.Variable(
                    tf.zeros([rows_per_replica, *spec.shape], self._stored_dtype(name)),
                    trainable=False,
                    name=name.replace("/", "_"),
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.NONE,
                )

    def read(self) -> dict[str, tf.Tensor]:
        """Returns this replica's state; inside `strategy.run` only."""
        # A copy of the current value, because the same step assigns the variable later.
        return {
            name: tf.cast(tf.identity(variable), self._dtypes[name])
            for name, variable in self._variables.items()
        }

    def write(self, values: Mapping[str, tf.Tensor]) -> None:
        """Replaces this replica's state, given by name; inside `strategy.run` only."""
        for name, variable in self._variables.items():
            variable.assign(tf.cast(values[name], variable.dtype))

    def to_global(self) -> dict[str, np.ndarray]:
        """Returns the state by name as arrays `(num_rows, ...)`, in the order of the global batch.

        With several workers, all must call it, and each gets all rows.
        """
        local = self._strategy.experimental_local_results
        if self._has_several_workers:
            # Only a collective reaches the parts of other workers; then each replica has all parts.
            gathered = self._strategy.run(self._gather)
            arrays = {
                name: local(gathered[name])[0].numpy().astype(dtype.as_numpy_dtype, copy=False)
                for name, dtype in self._dtypes.items()
            }
        else:
            parts = self._strategy.run(self._read)
            arrays = {
                name: np.concatenate([part.numpy() for part in local(parts[name])])
                for name in self._variables
            }
        return {name: array[: self._num_rows] for name, array in arrays.items()}

    def from_global(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Loads the state of all rows, arrays `(num_rows, ...)`; padding rows become zeros.

        With several workers, each loads the rows of its replicas. Raises ValueError for a wrong
        shape.
        """
        # All shapes are checked first, so that a refused state changes nothing.
        for name, variable in self._variables.items():
            expected = (self._num_rows, *variable.shape[1:])
            if tuple(arrays[name].shape) != expected:
                raise ValueError(
                    f"The state `{name}` must have the shape {expected}. "
                    f"Received: shape={arrays[name].shape}"
                )

        def part_of(context: tf.distribute.DistributedValues) -> dict[str, tf.Tensor]:
            first = context.replica_id_in_sync_group * self._rows_per_replica
            return {
                name: tf.convert_to_tensor(self._rows_of(arrays[name], first), dtype)
                for name, dtype in self._dtypes.items()
            }

        parts = self._strategy.experimental_distribute_values_from_function(part_of)
        self._strategy.run(self._write, args=(parts,))

    @property
    def rows_per_replica(self) -> int:
        """Rows of each replica, including padding."""
        return self._rows_per_replica

    @property
    def names(self) -> Sequence[str]:
        """Names of the state."""
        return tuple(self._variables)

    def _rows_of(self, array: np.ndarray, first: int) -> np.ndarray:
        """Returns the rows of a replica from row `first` on, padded with zeros."""
        rows = array[first : first + self._rows_per_replica]
        if len(rows) == self._rows_per_replica:
            return rows
        padded = np.zeros((self._rows_per_replica, *array.shape[1:]), array.dtype)
        padded[: len(rows)] = rows
        return padded

    def _stored_dtype(self, name: str) -> tf.DType:
        """Returns the dtype in storage: workers cannot exchange all dtypes."""
        dtype = self._dtypes[name]
        if self._has_several_workers:
            return {tf.bfloat16: tf.float32, tf.bool: tf.int32}.get(dtype, dtype)
        return dtype

    def _gathered(self) -> dict[str, tf.Tensor]:
        stored = {name: tf.identity(variable) for name, variable in self._variables.items()}
        return tf.distribute.get_replica_context().all_gather(stored, axis=0)
