"""Devices of JAX that train together, each with all weights and its share of the rows."""

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from txl_tf.distribution.step_context import MESH_AXIS
from txl_tf.imports import jax, tensorflow as tf

# Generations of chips: their names in JAX, in lower case, and on Cloud TPU.
_CHIPS = {
    "tpu v4": "v4",
    "tpu v5 lite": "v5e",
    "tpu v5e": "v5e",
    "tpu v5": "v5p",
    "tpu v5p": "v5p",
    "tpu v6 lite": "v6e",
    "tpu v6e": "v6e",
    "tpu7x": "tpu7x",
}


class MeshStrategy:
    """Mesh with one axis over devices of all processes, in the place of a `tf.distribute.Strategy`.

    Every device has all weights. Rows are divided: the devices of a process have consecutive rows.
    `devices` defaults to all devices. `chip` is the generation of the chips, such as `v5e`, or
    `None` if they are no TPUs or unknown.
    """

    def __init__(self, devices: Sequence[Any] | None = None) -> None:
        self.devices = sorted(devices or jax.devices(), key=lambda each: each.process_index)
        self.mesh = jax.sharding.Mesh(np.array(self.devices), (MESH_AXIS,))
        self.num_replicas_in_sync = len(self.devices)
        self.num_workers = len({each.process_index for each in self.devices})
        self.chip: str | None = _CHIPS.get(self.devices[0].device_kind.lower())

    @property
    def is_chief(self) -> bool:
        """True if this process writes files."""
        return jax.process_index() == 0

    @property
    def kind(self) -> str:
        """Kind of the devices: `CPU`, `GPU` or `TPU`."""
        return self.devices[0].platform.upper()

    def scope(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context without effect, because `replicated` places variables."""
        return contextlib.nullcontext()

    @property
    def input_context(self) -> "tf.distribute.InputContext":
        """Place of this process among the processes that read rows."""
        return tf.distribute.InputContext(
            num_input_pipelines=self.num_workers,
            input_pipeline_id=jax.process_index(),
            num_replicas_in_sync=self.num_replicas_in_sync,
        )

    def sharding(self, is_by_row: bool) -> Any:
        """Returns the placement of arrays that are divided by row, or whole on each device."""
        axes = (MESH_AXIS,) if is_by_row else ()
        return jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec(*axes))

    def replicated(self, value: Any) -> Any:
        """Places an array of this process whole on each device."""
        return self._placed(np.array(value), is_by_row=False)

    def divided(self, array: np.ndarray) -> Any:
        """Places an array of all rows, which all processes have, by row."""
        return self._placed(array, is_by_row=True)

    def _placed(self, array: np.ndarray, is_by_row: bool) -> Any:
        sharding = self.sharding(is_by_row)
        return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)

    def joined(self, array: np.ndarray) -> Any:
        """Places the rows of this process on its devices, as a part of an array of all rows."""
        return jax.make_array_from_process_local_data(self.sharding(is_by_row=True), array)

    def fetched(self, array: Any) -> np.ndarray:
        """Copies an array of any placement to this process; all processes must call it."""
        if not array.is_fully_addressable and not array.is_fully_replicated:
            from jax.experimental import multihost_utils

            array = multihost_utils.process_allgather(array, tiled=True)
        # A copy, because the next step reuses the memory of the array.
        return np.array(array)

    def sum_over_workers(self, value: float) -> float:
        """Adds up a number of each process in float64; all processes must call it."""
        from jax.experimental import multihost_utils

        # The bits are exchanged, because JAX would round a float64.
        bits = np.array([value], np.float64).view(np.uint32)
        return float(np.asarray(multihost_utils.process_allgather(bits)).view(np.float64).sum())
