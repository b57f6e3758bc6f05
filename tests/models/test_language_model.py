"""Weights are those of the model, all of them, or none is assigned."""

import keras
import numpy as np
import pytest

from txl_tf.errors import MismatchError
from txl_tf.models.language_model import assign_weights


@pytest.fixture
def variables():
    return {name: keras.Variable(np.zeros(shape)) for name, shape in (("a", (2,)), ("b", (2, 3)))}


def test_all_arrays_are_assigned_and_others_passed_over(variables):
    arrays = {"a": np.ones(2), "b": np.ones((2, 3)), "more": np.ones(1)}
    assign_weights(variables, arrays)
    for name, variable in variables.items():
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), arrays[name])


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({}, "is missing"),
        ({"b": np.ones((3, 2))}, r"shape \[3, 2\], not \[2, 3\]"),
        ({"b": np.full((2, 3), "x")}, "type"),
        ({"b": np.ones((2, 3), bool)}, "type bool"),
    ],
)
def test_nothing_is_assigned_where_one_array_does_not_fit(variables, wrong, reason):
    with pytest.raises(MismatchError, match=f"`b` .*{reason}"):
        assign_weights(variables, {"a": np.ones(2)} | wrong)
    assert not keras.ops.convert_to_numpy(variables["a"]).any()
