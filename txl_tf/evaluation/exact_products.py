"""Float32 products without rounding."""

import contextlib
from collections.abc import Iterator

from txl_tf.imports import is_on_jax
from txl_tf.imports import tensorflow as tf
from txl_tf.layers.compiled_parts import exact_products_on_jax


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """Disables TF32 in the block, so that float32 products are exact."""
    if is_on_jax():
        with exact_products_on_jax():
            yield
        return
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)
