"""Peak speed of the devices of a run: published, or measured by large products."""

import dataclasses
import time

import keras
import tensorflow as tf

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.distribution.strategy import chip_of, num_workers
from txl_tf.tpu_compiler.chips import CHIPS

_UNITS = (("P", 1e15), ("T", 1e12), ("G", 1e9))
# Large enough to outweigh the launch, small enough for a short round.
_CPU_WIDTH, _ACCELERATOR_WIDTH = 2048, 4096
# An accelerator works through a queue; the host waits for it once a round.
_CPU_PRODUCTS, _ACCELERATOR_PRODUCTS = 1, 8
_SECONDS = 0.3
_MIN_ROUNDS = 2

WORTHWHILE_GAIN = 1.3
"""Gain of large products from which mixed bfloat16 pays: a step gains less."""


@dataclasses.dataclass(frozen=True)
class DevicePeak:
    """Floating-point operations per second of all devices, and the source of the figure."""

    flops_per_second: float
    source: str

    def describe(self) -> str:
        """Formats the figure with its unit and its source."""
        unit, size = next((each for each in _UNITS if self.flops_per_second >= each[1]), ("G", 1e9))
        return f"{self.flops_per_second / size:,.3g} {unit}FLOP/s, {self.source}"


def published_peak(strategy: tf.distribute.Strategy) -> DevicePeak | None:
    """Looks up the peak of TPUs; `None` for other devices and unknown TPU generations."""
    chip = CHIPS.get(chip_of(strategy) or "")
    if chip is None:
        return None
    num_chips = strategy.num_replicas_in_sync / chip.num_replicas
    source = f"published of {num_chips:g} {chip.name} in bfloat16"
    return DevicePeak(num_chips * chip.flops_per_second, source)


def measured_peak(experiment: ExperimentConfig, strategy: tf.distribute.Strategy) -> DevicePeak:
    """Measures the peak of CPUs or GPUs by large products in the precision of a run.

    One device is measured and taken for all; CPU replicas of one process share its cores. Draws no
    random numbers and reads no variables.
    """
    dtype = keras.DTypePolicy(experiment.training.dtype_policy).compute_dtype
    has_gpu = bool(tf.config.list_logical_devices("GPU"))
    num_devices = strategy.num_replicas_in_sync if has_gpu else num_workers(strategy)
    rate = product_rate(dtype)
    times = f", times {num_devices}" if num_devices > 1 else ""
    return DevicePeak(num_devices * rate, f"measured by products in {dtype}{times}")


def bfloat16_gain() -> float:
    """Measures the gain in speed of large products from float32 to bfloat16."""
    return product_rate("bfloat16") / product_rate("float32")


def product_rate(dtype: str) -> float:
    """Measures the operations per second of large matrix products on the first device.

    No model can be faster in this precision, so its operations over this rate are its share of the
    machine. The best of some rounds counts, because other work only slows a round down.
    """
    # The first available kind runs the model.
    device = next(
        device for kind in ("TPU", "GPU", "CPU") for device in tf.config.list_logical_devices(kind)
    )
    on_cpu = device.device_type == "CPU"
    width = _CPU_WIDTH if on_cpu else _ACCELERATOR_WIDTH
    num_products = _CPU_PRODUCTS if on_cpu else _ACCELERATOR_PRODUCTS
    with tf.device(device.name):
        # Stateless, because a reproducible run refuses to draw without a seed.
        left, right = (
            tf.cast(tf.random.stateless_normal((width, width), (0, seed)), dtype)
            for seed in range(2)
        )
        _round_seconds(left, right, num_products)  # compiles, and starts the threads
        rounds: list[float] = []
        while len(rounds) < _MIN_ROUNDS or sum(rounds) < _SECONDS:
            rounds.append(_round_seconds(left, right, num_products))
    return num_products * 2 * width**3 / min(rounds)


def _round_seconds(left: tf.Tensor, right: tf.Tensor, num_products: int) -> float:
    begin = time.perf_counter()
    for _ in range(num_products):
        product = tf.matmul(left, right)
    product[0, 0].numpy()  # waits for the last
    return time.perf_counter() - begin
