"""State that every replica keeps for its own rows, on its own device."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf


class ReplicaState:
    """Variables of which each replica holds the part for its rows.

    Row `r` of the global batch belongs to replica `r // rows_per_replica`.
    The variables are read and written inside `strategy.run` without any
    communication, and stay on the device between steps. TensorFlow cannot save
    such variables, so `to_global` packs the parts of all replicas into arrays
    of the global batch, which any number of replicas can take up again.

    Args:
        strategy: `tf.distribute.Strategy`.
        rows_per_replica: int. Rows of each replica.
        row_specs: mapping of name to `tf.TensorSpec` of one row's state.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        rows_per_replica: int,
        row_specs: Mapping[str, tf.TensorSpec],
    ) -> None:
        self._strategy = strategy
        self._rows_per_replica = rows_per_replica
        self._variables: dict[str, tf.Variable] = {}
        # Made once: each tf.function would be traced anew.
        self._read = tf.function(self.read, autograph=False)
        self._write = tf.function(self.write, autograph=False)
        with strategy.scope():
            for name, spec in row_specs.items():
                self._variables[name] = tf.Variable(
                    tf.zeros([rows_per_replica, *spec.shape], spec.dtype),
                    trainable=False,
                    name=name.replace("/", "_"),
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.NONE,
                )

    def read(self) -> dict[str, tf.Tensor]:
        """This replica's state; inside `strategy.run` only."""
        return {name: tf.identity(variable) for name, variable in self._variables.items()}

    def write(self, values: Mapping[str, tf.Tensor]) -> None:
        """Replaces this replica's state; inside `strategy.run` only.

        Args:
            values: mapping of every name to a tensor of this replica's rows.
        """
        for name, variable in self._variables.items():
            variable.assign(values[name])

    def to_global(self) -> dict[str, np.ndarray]:
        """The state of all rows, in the order of the global batch.

        Returns:
            Dict of name to array `(global_batch_size, ...)`.
        """
        parts = self._strategy.run(self._read)
        local = self._strategy.experimental_local_results
        return {
            name: np.concatenate([part.numpy() for part in local(parts[name])])
            for name in self._variables
        }

    def from_global(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Takes up the state of all rows.

        Args:
            arrays: mapping of every name to an array
                `(global_batch_size, ...)`.

        Raises:
            ValueError: If an array has another shape than is needed.
        """
        num_rows = self._rows_per_replica * self._strategy.num_replicas_in_sync
        for name, variable in self._variables.items():
            expected = (num_rows, *variable.shape[1:])
            if tuple(arrays[name].shape) != expected:
                raise ValueError(
                    f"The state `{name}` must have the shape {expected}. "
                    f"Received: shape={arrays[name].shape}"
                )

        def part_of(context: tf.distribute.DistributedValues) -> dict[str, tf.Tensor]:
            first = context.replica_id_in_sync_group * self._rows_per_replica
            rows = slice(first, first + self._rows_per_replica)
            return {
                name: tf.convert_to_tensor(arrays[name][rows], variable.dtype)
                for name, variable in self._variables.items()
            }

        parts = self._strategy.experimental_distribute_values_from_function(part_of)
        self._strategy.run(self._write, args=(parts,))

    @property
    def names(self) -> Sequence[str]:
        """The names of the state."""
        return tuple(self._variables)
