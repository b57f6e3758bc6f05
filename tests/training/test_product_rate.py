import time

import numpy as np
import pytest
import tensorflow as tf

from txl_tf.training import product_rate as product_rates
from txl_tf.training.product_rate import product_rate


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
