"""Variables that have a shape and take no memory, for models whose values are not needed."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

# Smaller ones are not worth it, and tensors of them may be read while a model is built.
_SMALLEST_BYTES = 2**16
_ALIGNMENT_BYTES = 64


@contextlib.contextmanager
def unallocated_variables() -> Iterator[None]:
    """Within it, large variables are made of pages that were never written.

    A compiler asks variables for their shape and type only. Weights and the two
    means of Adam for 838 million parameters would be 10 GB, so they are arrays
    of zeros whose pages the operating system supplies when they are first
    touched, which nothing does. Initial values are traced for their shape and
    never computed.
    """

    def create(next_creator: Callable[..., tf.Variable], **arguments: Any) -> tf.Variable:
        spec = _spec_of(arguments["initial_value"])
        num_bytes = spec.shape.num_elements() * spec.dtype.size
        if spec.dtype.is_floating and num_bytes >= _SMALLEST_BYTES:
            arguments["initial_value"] = _untouched_zeros(spec)
        return next_creator(**arguments)

    with tf.variable_creator_scope(create):
        yield


def _spec_of(initial_value: Any) -> tf.TensorSpec:
    if callable(initial_value):
        with tf.Graph().as_default():
            return tf.TensorSpec.from_tensor(tf.convert_to_tensor(initial_value()))
    return tf.TensorSpec.from_tensor(tf.convert_to_tensor(initial_value))


def _untouched_zeros(spec: tf.TensorSpec) -> tf.Tensor:
    num_bytes = spec.shape.num_elements() * spec.dtype.size
    pages = np.zeros(num_bytes + _ALIGNMENT_BYTES, np.uint8)
    first = -pages.ctypes.data % _ALIGNMENT_BYTES
    # Not every type of TensorFlow's is one of NumPy's, so the bits go over as integers.
    numbers = pages[first : first + num_bytes].view(f"uint{8 * spec.dtype.size}")
    # Every other way from NumPy to TensorFlow copies, and a copy touches the pages.
    bits = tf.experimental.dlpack.from_dlpack(numbers.reshape(spec.shape).__dlpack__())
    return tf.bitcast(bits, spec.dtype)
