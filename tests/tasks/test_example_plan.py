"""The order of examples: each once in an epoch, by arithmetic from the step."""

import hashlib

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
    for first_step in (0, 1, 5, 17, 39):
        np.testing.assert_array_equal(plan().positions(first_step), whole[first_step])
        np.testing.assert_array_equal(
            plan().examples_of(first_step, 40 - first_step), whole[first_step:]
        )


@pytest.mark.parametrize("change", [{"seed": 1}, {"fingerprint": "g"}])
def test_seed_and_examples_decide_the_order(change):
    assert not np.array_equal(plan().examples_of(0, 6), plan(**change).examples_of(0, 6))


def test_the_order_is_that_of_splitmix_numbers():
    begin = int.from_bytes(hashlib.sha256(b"f:0:0").digest()[:8], "little")
    numbers = []
    for index in range(8):
        mixed = (begin + (index + 1) * 0x9E3779B97F4A7C15) % 2**64
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
        numbers.append(mixed ^ (mixed >> 31))
    order = sorted(range(8), key=numbers.__getitem__)
    assert plan(num_examples=8).examples_of(0, 2).ravel().tolist() == order
