"""Rate at which the machine multiplies large matrices, which the use of it is compared with."""

import time

import tensorflow as tf

# The first that there is runs the model.
_DEVICE_KINDS = ("TPU", "GPU", "CPU")
# Large enough that a product takes long beside starting it, small enough for a short round.
_CPU_WIDTH, _ACCELERATOR_WIDTH = 2048, 4096
# An accelerator works through a queue; it is waited for once a round.
_CPU_PRODUCTS, _ACCELERATOR_PRODUCTS = 1, 8
_SECONDS = 0.3
_MIN_ROUNDS = 2

WORTHWHILE_GAIN = 1.3
"""Gain of large products that mixed bfloat16 needs: a step gains less than its products."""


def bfloat16_gain() -> float:
    """Measures how many times as fast large products are in bfloat16 as in float32."""
    return product_rate("bfloat16") / product_rate("float32")


def product_rate(dtype: str, seconds: float = _SECONDS) -> float:
    """Measures how fast TensorFlow multiplies large square matrices on the first device.

    No program of a model can be faster in this precision: its operations over
    this rate are its share of the machine. The best of several short rounds
    counts, since other work on the machine only ever makes one slower.

    Args:
        dtype: str. `"float32"`, `"bfloat16"` or another floating-point type.
        seconds: float. Time that the rounds take together, two of them at least.

    Returns:
        Floating-point operations per second: two for each multiplication.

    Raises:
        ValueError: If `dtype` is no floating-point type.

    Example:
    ```python
    flops_per_token, tokens_per_second = 50e6, 1000.0
    utilization = flops_per_token * tokens_per_second / product_rate("float32")
    ```
    """
    if not tf.as_dtype(dtype).is_floating:
        raise ValueError(f"`dtype` must be a floating-point type. Received: dtype={dtype!r}")
    device = _first_device()
    on_cpu = device.device_type == "CPU"
    width = _CPU_WIDTH if on_cpu else _ACCELERATOR_WIDTH
    num_products = _CPU_PRODUCTS if on_cpu else _ACCELERATOR_PRODUCTS
    with tf.device(device.name):
        # Made here, not drawn: a run that must repeat itself refuses to draw without a seed.
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
