"""Float32 products without rounding."""

import contextlib
from collections.abc import Iterator

import keras

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """Disables TF32 in the block, so that float32 products are exact."""
    if keras.backend.backend() == "jax":
        import jax

        with jax.default_matmul_precision("highest"):
            yield
        return
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)
