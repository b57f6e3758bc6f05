"""The identity of a run, and a small state of each of its steps."""

import ml_dtypes
import numpy as np

IDENTITY = {
    "model": {"num_layers": 2, "dropout": 0.1, "cutoffs": (4, 8)},
    "data": {"fingerprint": "6b86b273"},
    "seed": 7,
}


def arrays_of(step):
    """One array of every dtype that a state has, different at every step."""
    generator = np.random.default_rng(step)
    return {
        "model/block_0/kernel": generator.normal(size=(3, 4)).astype("float32"),
        "model/scalar": np.float32(0.1 + step),
        "optimizer/double": generator.normal(size=(2, 3)),
        "optimizer/iteration": np.asarray(step, "int64"),
        "memory/states/000": generator.normal(size=(2, 3, 2)).astype(ml_dtypes.bfloat16),
        "memory/valid_length": np.asarray([0, step], "int32"),
        "memory/empty": np.zeros((2, 0, 4), "float32"),
        "flags": np.asarray([True, False]),
        "seeds": np.asarray([2**32 - 1, 5], "uint32"),
    }


def assert_is_state_of(step, arrays):
    expected = arrays_of(step)
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        assert isinstance(arrays[name], np.ndarray)
        assert arrays[name].dtype == array.dtype, name
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)
