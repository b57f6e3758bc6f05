"""State of rows on the devices of a mesh, and the choice of the state for a strategy."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from txl_tf.distribution.mesh_strategy import MeshStrategy
from txl_tf.distribution.replica_state import ReplicaState
from txl_tf.distribution.strategy import AnyStrategy


class MeshState(ReplicaState):
    """`ReplicaState` in arrays of JAX, one for all rows, which are divided over a mesh.

    While a `MeshProgram` traces its step, `arrays` has tracers of the rows of one device instead.
    """

    def _create(self) -> None:
        self.arrays = {
            name: self._strategy.divided(
                np.zeros([self._num_padded_rows, *spec.shape], spec.dtype.as_numpy_dtype)
            )
            for name, spec in self._specs.items()
        }

    def _named(self) -> dict[str, Any]:
        return self.arrays

    def _assign(self, values: Mapping[str, Any]) -> None:
        self.arrays = {name: values[name].astype(old.dtype) for name, old in self.arrays.items()}

    def _fetch(self) -> dict[str, np.ndarray]:
        return {name: self._strategy.fetched(array) for name, array in self.arrays.items()}

    def _load(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays = {name: self._strategy.divided(array) for name, array in arrays.items()}


def replica_state(
    strategy: AnyStrategy, rows_per_replica: int, row_specs: Any, num_rows: int | None = None
) -> ReplicaState:
    """Creates the `ReplicaState` for a strategy of either backend."""
    kind = MeshState if isinstance(strategy, MeshStrategy) else ReplicaState
    return kind(strategy, rows_per_replica, row_specs, num_rows)
