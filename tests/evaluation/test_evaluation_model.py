"""Variables that only have a shape."""

import resource

import keras
import pytest
import tensorflow as tf

from txl_tf.evaluation.evaluator import unallocated_variables


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_gigabytes_of_variables_take_no_memory():
    before = resident_bytes()
    with unallocated_variables():
        dense = keras.layers.Dense(2**14, dtype="mixed_bfloat16")
        dense.build((None, 2**14))
        state = tf.Variable(tf.zeros([2**20], tf.bfloat16))
    assert dense.kernel.shape == (2**14, 2**14)
    assert dense.kernel.value.dtype == tf.float32
    assert state.dtype == tf.bfloat16
    assert resident_bytes() - before < 2**28  # the kernel has 2**30 bytes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_unallocated_variables_read_as_zeros(dtype):
    with unallocated_variables():
        variable = tf.Variable(lambda: tf.ones([256, 256], dtype))
    assert float(tf.reduce_sum(tf.abs(tf.cast(variable, tf.float32)))) == 0.0
