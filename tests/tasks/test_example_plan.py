"""The order of examples: each once in an epoch, by arithmetic from the step."""

import numpy as np
import pytest

from txl_tf.training.fine_tuning import ExamplePlan


def plan(num_examples=23, num_rows=4, seed=0, fingerprint="f"):
    return ExamplePlan(
        num_examples=num_examples, num_rows=num_rows, seed=seed, fingerprint=fingerprint
    )


def test_every_epoch_has_every_example_once_in_an_order_of_its_own():
    stream = plan().examples_of(0, 23).ravel()  # four epochs
    epochs = stream.reshape(4, 23)
    for epoch in epochs:
        assert sorted(epoch) == list(range(23))
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_a_later_step_is_arithmetic():
    whole = plan().examples_of(0, 40)
    assert plan().examples_of(23, 0).shape == (0, 4)
    for first_step in (0, 1, 5, 17, 39):
        np.testing.assert_array_equal(plan().positions(first_step), whole[first_step])
        np.testing.assert_array_equal(
            plan().examples_of(first_step, 40 - first_step), whole[first_step:]
        )


@pytest.mark.parametrize("change", [{"seed": 1}, {"fingerprint": "g"}])
def test_seed_and_examples_decide_the_order(change):
    assert not np.array_equal(plan().examples_of(0, 6), plan(**change).examples_of(0, 6))


def test_the_order_is_the_same_in_every_version():
    assert plan(num_examples=8).examples_of(0, 2).ravel().tolist() == [0, 6, 7, 4, 5, 1, 3, 2]
