"""Peak speed of the devices that a run trains on."""

import dataclasses
import os
from typing import TYPE_CHECKING

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.errors import UsageError

from .launch import Accelerator

if TYPE_CHECKING:
    import tensorflow as tf

_UNITS = (("P", 1e15), ("T", 1e12), ("G", 1e9))


@dataclasses.dataclass(frozen=True)
class DevicePeak:
    """Floating-point operations per second of all devices, and the source of the figure."""

    flops_per_second: float
    source: str

    def describe(self) -> str:
        """Formats the figure with its unit and its source."""
        unit, size = next((each for each in _UNITS if self.flops_per_second >= each[1]), ("G", 1e9))
        return f"{self.flops_per_second / size:,.3g} {unit}FLOP/s, {self.source}"


def published_peak(strategy: "tf.distribute.Strategy") -> DevicePeak | None:
    """Looks up the peak of TPUs; `None` for other devices and unknown TPU generations."""
    import tensorflow as tf

    from txl_tf.distribution.tpu_chips import ACCELERATOR_VARIABLE, CHIP_OF_ACCELERATOR
    from txl_tf.tpu_compiler.chips import Topology

    name = os.environ.get(ACCELERATOR_VARIABLE)
    if not isinstance(strategy, tf.distribute.TPUStrategy) or not name:
        return None
    try:
        accelerator = Accelerator.parse(name)
        generation = CHIP_OF_ACCELERATOR.get(
            accelerator.cloud.generation, accelerator.cloud.generation
        )
        chip = Topology.parse(f"{generation}:{accelerator.topology}").chip
    except UsageError:
        return None
    num_chips = strategy.num_replicas_in_sync / chip.num_replicas
    source = f"published of {num_chips:g} {chip.name} in bfloat16"
    return DevicePeak(num_chips * chip.flops_per_second, source)


def measured_peak(experiment: ExperimentConfig, strategy: "tf.distribute.Strategy") -> DevicePeak:
    """Measures the peak of CPUs or GPUs by large products in the precision of a run.

    One device is measured and taken for all; CPU replicas of one process share its cores. Draws no
    random numbers and reads no variables.
    """
    import keras
    import tensorflow as tf

    from txl_tf.distribution.strategy import num_workers
    from txl_tf.training.product_rate import product_rate

    dtype = keras.DTypePolicy(experiment.training.dtype_policy).compute_dtype
    has_gpu = bool(tf.config.list_logical_devices("GPU"))
    num_devices = strategy.num_replicas_in_sync if has_gpu else num_workers(strategy)
    rate = product_rate(dtype)
    times = f", times {num_devices}" if num_devices > 1 else ""
    return DevicePeak(num_devices * rate, f"measured by products in {dtype}{times}")
