"""State with a part on every replica, and the same arrays for any number of replicas."""

import numpy as np
import pytest
import tensorflow as tf

from tests.small_models import strategy_of
from txl_tf.distribution.replica_state import ReplicaState

ROWS = 4
SPECS = {
    "states/000": tf.TensorSpec([3, 2], tf.bfloat16),
    "valid_length": tf.TensorSpec([], tf.int32),
}


def state_of(num_replicas):
    return ReplicaState(strategy_of(num_replicas), ROWS // num_replicas, SPECS)


def some_arrays():
    numbers = np.arange(ROWS * 6, dtype="float32").reshape(ROWS, 3, 2)
    return {
        "states/000": tf.cast(numbers, tf.bfloat16).numpy(),
        "valid_length": np.array([3, 0, 2, 1], "int32"),
    }


def assert_has(state, arrays):
    for name, array in state.to_global().items():
        np.testing.assert_array_equal(array, arrays[name], err_msg=name)


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_state_begins_with_zeros_and_returns_its_arrays(num_replicas):
    state = state_of(num_replicas)
    assert set(state.names) == set(SPECS)
    for name, array in state.to_global().items():
        assert array.shape == (ROWS, *SPECS[name].shape)
        assert array.dtype == SPECS[name].dtype.as_numpy_dtype
        assert not np.any(array)
    state.from_global(some_arrays())
    assert_has(state, some_arrays())


def test_each_replica_has_its_own_rows_in_the_order_of_the_global_batch():
    state = state_of(2)
    state.from_global(some_arrays())
    strategy = strategy_of(2)

    @tf.function
    def add_replica_number():
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        values = state.read()
        values["valid_length"] += 10 * (number + 1)
        state.write(values)
        return values["valid_length"]

    parts = strategy.experimental_local_results(strategy.run(add_replica_number))
    assert [part.numpy().tolist() for part in parts] == [[13, 10], [22, 21]]
    arrays = state.to_global()
    assert arrays["valid_length"].tolist() == [13, 10, 22, 21]
    np.testing.assert_array_equal(arrays["states/000"], some_arrays()["states/000"])


@pytest.mark.parametrize("num_replicas", [1, 2])
@pytest.mark.parametrize("shape", [(2, 3, 2), (8, 3, 2), (4, 2, 2), (4, 3)])
def test_arrays_of_another_shape_are_refused_and_change_nothing(num_replicas, shape):
    state = state_of(num_replicas)
    state.from_global(some_arrays())
    wrong = {"states/000": np.zeros(shape, "float32"), "valid_length": np.zeros(ROWS, "int32")}
    with pytest.raises(ValueError, match=r"`states/000` must have the shape \(4, 3, 2\)"):
        state.from_global(wrong)
    assert_has(state, some_arrays())


def test_rows_that_make_up_equal_shares_are_not_part_of_the_state():
    strategy = strategy_of(2)
    state = ReplicaState(strategy, 3, SPECS, num_rows=ROWS)

    @tf.function
    def write_everywhere():
        values = state.read()
        state.write({name: tf.ones_like(tensor) for name, tensor in values.items()})

    strategy.run(write_everywhere)
    for name, array in state.to_global().items():
        assert array.shape == (ROWS, *SPECS[name].shape)
    state.from_global(some_arrays())
    assert_has(state, some_arrays())
    parts = strategy.experimental_local_results(strategy.run(tf.function(state.read)))
    assert [part["valid_length"].numpy().tolist() for part in parts] == [[3, 0, 2], [1, 0, 0]]
    assert not np.any(parts[1]["states/000"].numpy()[1:])


def test_a_replica_may_have_no_row_of_the_state():
    state = ReplicaState(strategy_of(2), ROWS, SPECS, num_rows=ROWS)
    state.from_global(some_arrays())
    assert_has(state, some_arrays())
