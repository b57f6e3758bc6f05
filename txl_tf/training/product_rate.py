"""Rate of large matrix products on the machine, to which the rate of a model is compared."""

import time

import tensorflow as tf

# The first available kind runs the model.
_DEVICE_KINDS = ("TPU", "GPU", "CPU")
# Large enough to outweigh the launch, small enough for a short round.
_CPU_WIDTH, _ACCELERATOR_WIDTH = 2048, 4096
# An accelerator works through a queue; the host waits for it once a round.
_CPU_PRODUCTS, _ACCELERATOR_PRODUCTS = 1, 8
_SECONDS = 0.3
_MIN_ROUNDS = 2

WORTHWHILE_GAIN = 1.3
"""Gain of large products from which mixed bfloat16 pays: a step gains less."""


def bfloat16_gain() -> float:
    """Measures the gain in speed of large products from float32 to bfloat16."""
    return product_rate("bfloat16") / product_rate("float32")


def product_rate(dtype: str, seconds: float = _SECONDS) -> float:
    """Measures the operations per second of large matrix products on the first device.

    No model can be faster in this precision, so its operations over this rate are its share of the
    machine. The best of at least two rounds counts, because other work only slows a round down.
    `seconds` is the time of all rounds.
    """
    if not tf.as_dtype(dtype).is_floating:
        raise ValueError(f"`dtype` must be a floating-point type. Received: dtype={dtype!r}")
    device = _first_device()
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
        while len(rounds) < _MIN_ROUNDS or sum(rounds) < seconds:
            rounds.append(_round_seconds(left, right, num_products))
    return num_products * 2 * width**3 / min(rounds)


def _first_device() -> tf.config.LogicalDevice:
    return next(device for kind in _DEVICE_KINDS for device in tf.config.list_logical_devices(kind))


def _round_seconds(left: tf.Tensor, right: tf.Tensor, num_products: int) -> float:
    begin = time.perf_counter()
    for _ in range(num_products):
        product = tf.matmul(left, right)
    product[0, 0].numpy()  # waits for the last
    return time.perf_counter() - begin
