"""State that every replica keeps for its own rows, on its own device."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from keras import ops

from txl_tf.distribution.step_context import replica_index
from txl_tf.distribution.strategy import AnyStrategy, num_workers


class ReplicaState:
    """Variables that hold, on each replica, the state of its rows.

    Row `r` of the global batch belongs to replica `r // rows_per_replica`. The variables are read
    and written inside `strategy.run` without communication, and stay on the device between steps.
    TensorFlow cannot save such variables, so `to_global` packs all parts into arrays of the global
    batch, which any number of replicas can load. `row_specs` describe the state of one row: a
    nested structure of specs, such as a `Memory` or a dict, whose values have the `names`, such as
    `states/000`. If the replicas have more than `num_rows` rows, the last ones are padding.

    `MeshState` does the same on JAX, and replaces the methods that create, read, write, fetch and
    load: `_create`, `_named`, `_assign`, `_fetch` and `_load`.
    """

    def __init__(
        self,
        strategy: AnyStrategy,
        rows_per_replica: int,
        row_specs: Any,
        num_rows: int | None = None,
    ) -> None:
        self._strategy: Any = strategy
        self.rows_per_replica = rows_per_replica
        self._num_padded_rows = rows_per_replica * strategy.num_replicas_in_sync
        self._num_rows = self._num_padded_rows if num_rows is None else num_rows
        self._structure = row_specs
        self._specs = named_values(row_specs)
        self.names = tuple(self._specs)
        self._create()

    def _create(self) -> None:
        """Creates the state of all rows as zeros."""
        self._has_several_workers = num_workers(self._strategy) > 1
        self._variables: dict[str, tf.Variable] = {}
        # Created once, because every new tf.function is traced again.
        self._read = tf.function(self._named, autograph=False)
        self._gather = tf.function(self._gathered, autograph=False)
        self._write = tf.function(self._assign, autograph=False)
        # Workers cannot exchange these dtypes.
        exchange_dtypes = {tf.bfloat16: tf.float32, tf.bool: tf.int32}
        stored_dtypes = exchange_dtypes if self._has_several_workers else {}
        with self._strategy.scope():
            for name, spec in self._specs.items():
                dtype = stored_dtypes.get(spec.dtype, spec.dtype)
                # With ON_READ and no aggregation, each replica assigns its own copy without
                # communication.
                self._variables[name] = tf.Variable(
                    tf.zeros([self.rows_per_replica, *spec.shape], dtype),
                    trainable=False,
                    name=name.replace("/", "_"),
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.NONE,
                )

    def read(self) -> Any:
        """Returns this replica's state in the structure of the specs; in `strategy.run` only."""
        return tf.nest.pack_sequence_as(self._structure, [*self._named().values()])

    def write(self, values: Any) -> None:
        """Replaces this replica's state, in the structure of the specs; in `strategy.run` only."""
        self._assign(named_values(values))

    def _named(self) -> dict[str, tf.Tensor]:
        # `identity` copies the current value, because the same step assigns the variable later.
        return {
            name: tf.cast(tf.identity(variable), self._specs[name].dtype)
            for name, variable in self._variables.items()
        }

    def _assign(self, values: Mapping[str, tf.Tensor]) -> None:
        for name, variable in self._variables.items():
            variable.assign(tf.cast(values[name], variable.dtype))

    def to_global(self) -> dict[str, np.ndarray]:
        """Returns the state by name as arrays `(num_rows, ...)`, in the order of the global batch.

        With several workers, all must call it, and each gets all rows.
        """
        return {name: array[: self._num_rows] for name, array in self._fetch().items()}

    def _fetch(self) -> dict[str, np.ndarray]:
        """Returns the rows of all replicas, with padding."""
        local = self._strategy.experimental_local_results
        if self._has_several_workers:
            # Only a collective operation reaches the parts of other workers. It gives all parts to
            # each replica.
            rows = self._strategy.run(self._gather)
            return {
                name: local(rows[name])[0].numpy().astype(spec.dtype.as_numpy_dtype, copy=False)
                for name, spec in self._specs.items()
            }
        parts = self._strategy.run(self._read)
        return {
            name: np.concatenate([part.numpy() for part in local(parts[name])])
            for name in self._variables
        }

    def from_global(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Loads the state of all rows, arrays `(num_rows, ...)`; padding rows become zeros.

        With several workers, each loads the rows of its replicas. Raises ValueError for a wrong
        shape.
        """
        # All shapes are checked before the first change, so that a wrong shape changes nothing.
        for name, spec in self._specs.items():
            shape = (self._num_rows, *spec.shape)
            if tuple(arrays[name].shape) != shape:
                raise ValueError(
                    f"The state `{name}` must have the shape {shape}. "
                    f"Received: shape={arrays[name].shape}"
                )
        padding = (0, self._num_padded_rows - self._num_rows)
        padded_arrays = {}
        for name, spec in self._specs.items():
            array = arrays[name].astype(spec.dtype.as_numpy_dtype, copy=False)
            padded_arrays[name] = np.pad(array, [padding, *[(0, 0)] * (array.ndim - 1)])
        self._load(padded_arrays)

    def _load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Loads arrays `(num_padded_rows, ...)` of the dtypes of the state."""

        def part_of(context: tf.distribute.DistributedValues) -> dict[str, tf.Tensor]:
            first = context.replica_id_in_sync_group * self.rows_per_replica
            rows = slice(first, first + self.rows_per_replica)
            return {name: tf.convert_to_tensor(array[rows]) for name, array in arrays.items()}

        parts = self._strategy.experimental_distribute_values_from_function(part_of)
        self._strategy.run(self._write, args=(parts,))

    def places(self) -> tf.Tensor:
        """Returns the places of this replica's rows in the global batch, int32.

        Inside `strategy.run` only.
        """
        num_rows = self.rows_per_replica
        return replica_index() * num_rows + ops.arange(num_rows, dtype="int32")

    def _gathered(self) -> dict[str, tf.Tensor]:
        values = {name: tf.identity(variable) for name, variable in self._variables.items()}
        return tf.distribute.get_replica_context().all_gather(values, axis=0)


def named_values(structure: Any, name: str = "") -> dict[str, Any]:
    """Returns the values of nested dicts and tuples by name, in the order of `tf.nest`."""
    if hasattr(structure, "_asdict"):
        parts = structure._asdict()
    elif isinstance(structure, dict):
        parts = dict(sorted(structure.items()))
    elif isinstance(structure, tuple):
        parts = {f"{place:03d}": part for place, part in enumerate(structure)}
    else:
        return {name: structure}
    values: dict[str, Any] = {}
    for part_name, part in parts.items():
        values |= named_values(part, f"{name}/{part_name}".lstrip("/"))
    return values
