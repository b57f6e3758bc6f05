"""Stored weights are restored within the precision of their stored type."""

import keras
import numpy as np
import pytest

from txl_tf.export.served_model import ServedWeights


def variables():
    random = np.random.default_rng(0)
    rows = random.normal(size=(128, 64)) * np.exp(random.normal(size=(128, 1)))
    arrays = {
        "rows": rows,
        "columns": rows.T,
        "zeros": np.zeros((64, 64)),
        "narrow": random.normal(size=(2048, 2)),
        "small": random.normal(size=(4, 4)),
        "bias": random.normal(size=5000),
    }
    return [keras.Variable(array.astype("float32"), name=name) for name, array in arrays.items()]


@pytest.mark.parametrize("stored_as", ["float32", "bfloat16", "int8"])
def test_weights_come_back_as_float32_within_their_precision(stored_as):
    originals = variables()
    stored = ServedWeights({each.path: each.numpy() for each in originals}, stored_as)
    for variable, value in zip(originals, stored.values(), strict=True):
        expected, restored = variable.numpy(), value.numpy()
        assert restored.dtype == np.float32 and restored.shape == expected.shape
        error = np.abs(restored - expected)
        if stored_as == "float32" or variable.name in ("small", "bias", "zeros"):
            assert not error.any()
        elif stored_as == "bfloat16":
            assert (error <= np.abs(expected) * 2**-8).all()
        else:  # half a step of the row's, or the column's, own scale
            axis = 0 if variable.name in ("columns", "narrow") else 1
            largest = np.abs(expected).max(axis=axis, keepdims=True)
            assert (error <= largest / 127 * 0.5001).all()
