"""A resumed run equals the run that never stopped."""

import functools

import numpy as np
import pytest

from tests.slow_case import slow_case
from tests.toy_batches import (
    ToyBatches,
    largest_relative_difference,
    strategy_of,
    toy_experiment,
    toy_tokens,
)
from txl_tf.training.trainer import Trainer

NUM_STEPS = 12
HALF = NUM_STEPS // 2


def new_trainer(num_replicas, dropout, num_layers=1):
    # 8 segments a row: the second half of the run begins another epoch.
    batches = ToyBatches(toy_tokens(8 * 4 * 5 + 1), 4, restarts=[(HALF, 1), (HALF + 1, 2)])
    experiment = toy_experiment(
        model={"num_layers": num_layers, "dropout": dropout, "attention_dropout": dropout},
        training={"num_steps": NUM_STEPS},
        optimizer={"clip_norm": 1.0},
    )
    return Trainer(experiment, strategy_of(num_replicas), batches.dataset_function)


@functools.cache
def unbroken(num_replicas, dropout, num_layers=1):
    """Losses of all steps, state half way and at the end."""
    trainer = new_trainer(num_replicas, dropout, num_layers)
    losses, half_way = [], None
    for report in trainer.run():
        losses.append(report.nats_per_token)
        if report.step == HALF:
            half_way = trainer.arrays()
    return losses, half_way, trainer.arrays()


@pytest.mark.parametrize("num_replicas", [1, slow_case(2)])
def test_resuming_is_bit_identical_with_dropout_and_memory(num_replicas):
    losses, half_way, end = unbroken(num_replicas, 0.2)
    trainer = new_trainer(num_replicas, 0.2)
    trainer.load_arrays(half_way)
    assert trainer.step == HALF
    assert [report.nats_per_token for report in trainer.run()] == losses[HALF:]
    state = trainer.arrays()
    assert state.keys() == end.keys()
    for name, array in state.items():
        np.testing.assert_array_equal(array, end[name], err_msg=name)
    # The comparison means something only if the state it went on from was not the first one.
    assert np.all(half_way["memory/valid_length"] > 0)
    assert largest_relative_difference(half_way, end) > 1e-2


@pytest.mark.slow
def test_a_state_of_two_replicas_goes_on_under_one():
    # Two layers, so that their memories would be seen to change places.
    losses, half_way, end = unbroken(2, 0.0, num_layers=2)
    trainer = new_trainer(1, 0.0, num_layers=2)
    trainer.load_arrays(half_way)
    continued = [report.nats_per_token for report in trainer.run()]
    assert continued == pytest.approx(losses[HALF:], rel=1e-5)
    assert largest_relative_difference(end, trainer.arrays()) <= 1e-5


def test_a_state_of_one_replica_is_dealt_out_to_two():
    _, half_way, _ = unbroken(1, 0.2)
    trainer = new_trainer(2, 0.2)
    trainer.load_arrays(half_way)
    for name, array in trainer.arrays().items():
        np.testing.assert_array_equal(array, half_way[name], err_msg=name)


@pytest.fixture(scope="module")
def trainer_and_state():
    trainer = new_trainer(1, 0.0)
    return trainer, trainer.arrays()


def test_every_single_array_of_the_state_is_needed(trainer_and_state):
    trainer, state = trainer_and_state
    for name in state:
        rest = {other: array for other, array in state.items() if other != name}
        with pytest.raises(ValueError, match="1 missing") as raised:
            trainer.load_arrays(rest)
        assert name in str(raised.value)


def test_an_array_that_the_model_does_not_have_is_refused(trainer_and_state):
    trainer, state = trainer_and_state
    with pytest.raises(ValueError, match=r"1 surplus \['model/block_7"):
        trainer.load_arrays({**state, "model/block_7/extra": np.zeros(1)})


@pytest.mark.parametrize("name", ["model/embedding/table", "memory/states/000"])
def test_an_array_of_another_shape_is_refused_and_changes_nothing(trainer_and_state, name):
    trainer, state = trainer_and_state
    arrays = {other: array + 1 for other, array in state.items()}
    arrays[name] = arrays[name][:-1]
    with pytest.raises(ValueError, match="must have the shape"):
        trainer.load_arrays(arrays)
    for other, array in trainer.arrays().items():
        np.testing.assert_array_equal(array, state[other], err_msg=other)
