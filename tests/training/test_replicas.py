"""Two replicas are one run: the same numbers as one replica, but masks of their own."""

import functools

import numpy as np
import pytest

from tests.slow_case import slow_case
from tests.toy_batches import (
    SEGMENT_LENGTH,
    ToyBatches,
    largest_relative_difference,
    strategy_of,
    toy_experiment,
    toy_tokens,
)
from txl_tf.training.trainer import Trainer


@functools.cache
def trained(num_replicas, clip_norm, num_steps=20):
    """Reports and state of a run; 4 rows, whatever the number of replicas."""
    batches = ToyBatches(toy_tokens(), 4, restarts=[(5, 1), (9, 2)])
    clusters = {"cutoffs": (4, 9), "division_factor": 2, "embedding_dim": 8}
    experiment = toy_experiment(
        model=clusters, training={"num_steps": num_steps}, optimizer={"clip_norm": clip_norm}
    )
    trainer = Trainer(experiment, strategy_of(num_replicas), batches.dataset_function)
    return list(trainer.run()), trainer.arrays()


# A limit far above the norms of about 2, and one far below: replicas that clipped before
# the sum would have other gradients with the second.
@pytest.mark.parametrize("clip_norm", [slow_case(100.0), 0.02])
def test_two_replicas_of_b_rows_equal_one_replica_of_2b_rows(clip_norm):
    one, one_state = trained(1, clip_norm)
    two, two_state = trained(2, clip_norm)
    for first, second in zip(one, two, strict=True):
        assert second.nats_per_token == pytest.approx(first.nats_per_token, rel=1e-5)
        assert second.gradient_norm == pytest.approx(first.gradient_norm, rel=1e-5)
        assert first.gradient_norm > 0.2  # ten times the lower limit
    # Weights, optimizer and the memory of every row in its place.
    assert largest_relative_difference(one_state, two_state) <= 1e-5


def test_the_clipping_of_the_comparison_does_clip():
    _, unclipped = trained(1, 100.0)
    _, clipped = trained(1, 0.02)
    assert largest_relative_difference(unclipped, clipped) > 1e-2


def masked_trainer(num_replicas=2, seed=3):
    """The second half of the rows repeats the first, so only masks can tell them apart."""
    batches = ToyBatches(toy_tokens(), 4, twins=True)
    experiment = toy_experiment(
        model={"dropout": 0.5, "attention_dropout": 0.2},
        training={"num_steps": 6, "seed": seed},
    )
    return Trainer(experiment, strategy_of(num_replicas), batches.dataset_function)


@functools.cache
def masked_run():
    """Losses and states after every step."""
    trainer = masked_trainer()
    losses, states = [], []
    for report in trainer.run():
        losses.append(report.nats_per_token)
        states.append(trainer.arrays())
    return losses, states


def mask_of(state):
    """The embeddings that dropout set to 0, per row: the first block's memory."""
    return state["memory/states/000"][:, -SEGMENT_LENGTH:] == 0.0


@pytest.mark.slow
def test_replicas_steps_and_seeds_have_dropout_masks_of_their_own():
    _, states = masked_run()
    first_step, second_step = mask_of(states[0]), mask_of(states[1])
    other = masked_trainer(num_replicas=1, seed=4)
    next(other.run())
    pairs = {
        "replicas": (first_step[:2], first_step[2:]),
        "replicas, next step": (second_step[:2], second_step[2:]),
        "steps": (first_step[:2], second_step[:2]),
        "steps across replicas": (first_step[2:], second_step[:2]),
        "seeds": (first_step[:2], mask_of(other.arrays())[:2]),
    }
    for name, (first, second) in pairs.items():
        # 80 draws at a rate of 0.5: five standard deviations are 0.28.
        assert 0.22 < np.mean(first) < 0.78, name
        assert 0.22 < np.mean(first == second) < 0.78, name


@pytest.mark.slow
def test_the_same_run_twice_is_the_same_to_the_last_bit():
    losses, states = masked_run()
    trainer = masked_trainer()
    assert [report.nats_per_token for report in trainer.run()] == losses
    for name, array in trainer.arrays().items():
        np.testing.assert_array_equal(array, states[-1][name], err_msg=name)
