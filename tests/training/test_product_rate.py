import time
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from txl_tf.training import product_rate as product_rates
from txl_tf.training.product_rate import product_rate


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_rate_is_that_of_products_of_the_type(monkeypatch, dtype):
    """As many operations as the products have, over the time of the fastest of the rounds."""
    monkeypatch.setattr(product_rates, "_CPU_WIDTH", 64)
    seconds, multiplied = iter([9.0, 0.5, 0.25, 1.0]), []
    real_matmul = tf.matmul

    def matmul(left, right):
        multiplied.append((left.dtype.name, tuple(left.shape), tuple(right.shape)))
        return real_matmul(left, right)

    class Clock:
        now = 0.0
        calls = 0

        @classmethod
        def perf_counter(cls):
            cls.calls += 1
            if cls.calls % 2 == 0:
                cls.now += next(seconds)
            return cls.now

    with mock.patch.object(product_rates, "time", Clock), mock.patch("tensorflow.matmul", matmul):
        rate = product_rate(dtype, seconds=1.5)
    # The first round compiles and does not count; three more are longer than 1.5 s together.
    assert multiplied == [(dtype, (64, 64), (64, 64))] * 4
    assert rate == 2 * 64**3 / 0.25


def test_the_machine_multiplies_as_fast_as_is_said(monkeypatch):
    monkeypatch.setattr(product_rates, "_CPU_WIDTH", 512)
    rate = product_rate("float32", seconds=0.05)
    matrix = tf.ones((512, 512))
    begin = time.perf_counter()
    for _ in range(3):
        np.asarray(tf.matmul(matrix, matrix))
    # Other work on the machine slows either down, so that only the order of magnitude is sure.
    assert 0.01 < rate / (3 * 2 * 512**3 / (time.perf_counter() - begin)) < 100


def test_numbers_that_are_not_floating_point_are_refused():
    with pytest.raises(ValueError, match=r"Received: dtype='int32'"):
        product_rate("int32")
