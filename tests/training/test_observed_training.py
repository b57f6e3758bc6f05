"""What is measured beside the steps: it is right, and the steps do not notice."""

import numpy as np
import pytest

from tests.slow_case import slow_case
from tests.toy_batches import ToyBatches, largest_relative_difference, toy_tokens
from tests.toy_trainers import NUM_ROWS, toy_trainer
from txl_tf.training import trainer as module

LOOPS = {"training": {"num_steps": 8, "steps_per_loop": 4}}


def observed(trainer):
    """Reports of a run whose updates are measured."""
    while trainer.step < 8:
        yield trainer.take_steps(measures_updates=True)


def weights_of(trainer):
    arrays = [variable.numpy().astype("float64") for variable in trainer.trainable_variables]
    return np.concatenate([array.ravel() for array in arrays])


def norm_ratio(before, after):
    return np.linalg.norm(after - before) / np.linalg.norm(after)


@pytest.mark.slow
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_steps_that_are_looked_at_are_the_same_steps(num_replicas):
    plain, looked_at = (toy_trainer(num_replicas=num_replicas, **LOOPS) for _ in range(2))
    reports, others = list(plain.run()), list(observed(looked_at))
    assert [report.records for report in reports] == [report.records for report in others]
    assert largest_relative_difference(plain.state(), looked_at.state()) == 0.0
    assert all((other.data_wait_seconds is not None) == (num_replicas == 1) for other in others)


@pytest.mark.slow
def test_the_ratio_is_that_of_the_last_step_of_a_loop_by_rows_that_stand_for_all(monkeypatch):
    singly = toy_trainer(training={"num_steps": 8})
    weights = [weights_of(singly) for _ in singly.run()]
    ratios = [report.update_ratio for report in observed(toy_trainer(**LOOPS))]
    expected = [norm_ratio(weights[2], weights[3]), norm_ratio(weights[6], weights[7])]
    np.testing.assert_allclose(ratios, expected, rtol=1e-4)
    monkeypatch.setattr(module, "_MAX_SAMPLED", 30)
    sampled = [report.update_ratio for report in observed(toy_trainer(**LOOPS))]
    assert sampled != ratios
    np.testing.assert_allclose(sampled, ratios, rtol=0.5)


@pytest.mark.parametrize("num_replicas", [1, slow_case(3)])
def test_memory_is_measured_over_filled_positions_of_real_rows(num_replicas):
    """Three replicas have made-up rows. The restarted row has read less than the others."""
    batches = ToyBatches(toy_tokens(), NUM_ROWS, restarts=[(1, 2)])
    trainer = toy_trainer(batches, num_replicas, model={"num_layers": 2})
    assert trainer.measure_memory() == (0.0, [])
    trainer.take_steps(), trainer.take_steps()
    (length, found), memory = trainer.measure_memory(), trainer.replica_memory.to_global()
    assert length == (7 + 7 + 5 + 7) / 4
    for layer in range(2):
        norms = [
            np.linalg.norm(memory[f"states/{layer:03d}"][row, -length:], axis=1)
            for row, length in enumerate(memory["valid_length"])
        ]
        assert found[layer] == pytest.approx(np.concatenate(norms).mean(), rel=1e-5)
