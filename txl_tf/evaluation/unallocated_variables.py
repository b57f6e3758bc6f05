"""Variables that have a shape and a type, but take no memory.

Compiling a program for a TPU, and building a model whose variables are replaced at once, need
variables without values. TensorFlow would allocate and initialize them. Here their buffers are
anonymous memory maps, whose pages the operating system supplies only when they are first used.
"""

import contextlib
import mmap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from txl_tf.imports import tensorflow as tf

# Smaller variables would save too little, and may be read while a model is built.
_SMALLEST_BYTES = 2**16


@contextlib.contextmanager
def unallocated_variables() -> Iterator[None]:
    """Creates all large float variables of the block as zeros that take no memory.

    Weights and the two means of Adam for 838 million parameters would be 10 GB. Initial values are
    traced for their shape and never computed.
    """

    def create(next_creator: Callable[..., tf.Variable], **arguments: Any) -> tf.Variable:
        spec = _spec_of(arguments["initial_value"])
        num_bytes = spec.shape.num_elements() * spec.dtype.size
        if spec.dtype.is_floating and num_bytes >= _SMALLEST_BYTES:
            arguments["initial_value"] = _untouched_zeros(spec)
        return next_creator(**arguments)

    with tf.variable_creator_scope(create):
        yield


def _spec_of(initial_value: Any) -> "tf.TensorSpec":
    """Returns shape and type of an initial value; traces a function in a graph that never runs."""
    if callable(initial_value):
        with tf.Graph().as_default():
            return tf.TensorSpec.from_tensor(tf.convert_to_tensor(initial_value()))
    return tf.TensorSpec.from_tensor(tf.convert_to_tensor(initial_value))


def _untouched_zeros(spec: "tf.TensorSpec") -> "tf.Tensor":
    """Returns a tensor of zeros whose memory pages nothing has used yet."""
    pages = mmap.mmap(-1, spec.shape.num_elements() * spec.dtype.size)
    # NumPy lacks some types of TensorFlow, so the bits are passed as integers.
    numbers = np.frombuffer(pages, f"uint{8 * spec.dtype.size}").reshape(spec.shape)
    # DLPack shares the memory. All other conversions from NumPy copy it, which uses the pages.
    bits = tf.experimental.dlpack.from_dlpack(numbers.__dlpack__())
    return tf.bitcast(bits, spec.dtype)
