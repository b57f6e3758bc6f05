"""Averaging that begins when evaluations gain nothing any more, against AWD-LSTM's loop."""

import math

import numpy as np
import pytest

from tests.toy_batches import ToyBatches, strategy_of, toy_experiment, toy_tokens
from txl_tf.config.experiment import ExperimentConfig, TrainingConfig
from txl_tf.run import identity
from txl_tf.training.train_state import EvaluationHistory, NonMonotoneTrigger
from txl_tf.training.trainer import Trainer

LOSSES = [5.0, 4.0, 4.5, 3.0, 3.5, 3.2, 3.1, 2.9, 3.0, 2.95, 3.3, 1.0]


def looped(losses, interval):
    """Whether each evaluation finds the trigger on, by the loop of Merity et al. (2018)."""
    logs, is_on, found = [], False, []
    for loss in losses:
        is_on = is_on or (len(logs) > interval and loss > min(logs[:-interval]))
        logs.append(loss)
        found.append(is_on)
    return found


@pytest.mark.parametrize("interval", [1, 2, 3, 5, 20])
def test_it_is_the_loop_of_awd_lstm(interval):
    drawn = np.random.default_rng(interval)
    cases = [LOSSES, sorted(LOSSES), sorted(LOSSES, reverse=True), [2.0] * 12]
    cases += [drawn.integers(1, 9, 30).astype(float).tolist() for _ in range(8)]
    for losses in cases:
        trigger = NonMonotoneTrigger(interval)
        assert [trigger.observe(loss) for loss in losses] == looped(losses, interval)


def test_what_is_not_finite_is_no_gain_and_is_not_stored():
    trigger = NonMonotoneTrigger(1)
    assert [trigger.observe(each) for each in (3.0, 2.0, math.nan)] == [False, False, True]
    trigger = NonMonotoneTrigger(2)
    trigger.observe(math.inf)
    assert all(np.isfinite(each.numpy()).all() for each in trigger.variables.values())


@pytest.mark.parametrize("num_observed", range(0, len(LOSSES), 3))
def test_it_decides_the_same_from_its_variables(num_observed):
    whole, interrupted, resumed = (NonMonotoneTrigger(3) for _ in range(3))
    decisions = [whole.observe(loss) for loss in LOSSES]
    for loss in LOSSES[:num_observed]:
        interrupted.observe(loss)
    for name, variable in interrupted.variables.items():
        resumed.variables[name].assign(variable.numpy())
    assert [resumed.observe(loss) for loss in LOSSES[num_observed:]] == decisions[num_observed:]


def trainer_of(**training):
    batches = ToyBatches(toy_tokens(), 4)
    values = {
        "num_steps": 8,
        "jit_compile": False,
        "evaluate_every_steps": 1,
        "average_weights_after_evaluations": 1,
    }
    experiment = toy_experiment(
        training=values | training, optimizer={"learning_rate": 3e-2}, model={"dropout": 0.2}
    )
    return Trainer(experiment, strategy_of(1), batches.dataset_function)


EVALUATIONS = [5.0, 4.0, 4.1, 3.0, 4.5, 1.0, 1.0, 1.0]
"""By step: the third is the first that is worse than what was there one evaluation ago."""


def run_of(trainer, history):
    """The losses, states and histories after each step, each of which is evaluated."""
    steps = []
    for report in trainer.run():
        history.observe(report.step, EVALUATIONS[report.step - 1])
        weights = {variable.path: variable.numpy() for variable in trainer.model.weights}
        state = trainer.state() | history.state()
        steps.append((report.nats_per_token, weights, trainer.inference_weights(), state))
    return steps


@pytest.fixture(scope="module")
def recorded():
    trainer = trainer_of()
    return run_of(trainer, EvaluationHistory(*trainer.evaluation_observers))


def test_weights_are_averaged_from_the_step_after_the_trigger(recorded):
    first = looped(EVALUATIONS, 1).index(True) + 1  # the steps that are done then
    assert first == 5
    for step, (_, weights, averages, _) in enumerate(recorded, 1):
        counted = [each for _, each, _, _ in recorded[first:step]] or [weights]
        for path, average in averages.items():
            mean = np.mean([np.float64(each[path]) for each in counted], axis=0)
            np.testing.assert_allclose(average, mean, rtol=0, atol=1e-6, err_msg=path)
    table = "embedding/table"
    assert np.abs(recorded[-1][1][table] - recorded[-1][2][table]).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("stop", [2, 6])
def test_a_resumed_run_is_the_unbroken_one_bit_for_bit(recorded, stop):
    trainer = trainer_of()
    history = EvaluationHistory(*trainer.evaluation_observers)
    state = dict(recorded[stop - 1][3])
    history.load_state({name: state.pop(name) for name in history.state()})
    trainer.load_state(state)
    for found, expected in zip(run_of(trainer, history), recorded[stop:], strict=True):
        assert found[0] == expected[0]
        assert found[3].keys() == expected[3].keys()
        for name, array in found[3].items():
            np.testing.assert_array_equal(array, expected[3][name], err_msg=name)
    assert any(name.startswith("average_trigger/") for name in state)


def test_the_interval_is_positive_and_one_beginning_is_chosen():
    with pytest.raises(ValueError, match="Received: num_evaluations=0"):
        NonMonotoneTrigger(0)
    sizes = {"global_batch_size": 1, "num_steps": 9, "average_weights_after_evaluations": 5}
    with pytest.raises(ValueError, match="exclude each other"):
        TrainingConfig(**sizes, average_weights_from_step=3)
    assert TrainingConfig(**sizes, average_weights_decay=0.5).averages_weights
    model = toy_experiment().model
    with pytest.raises(ValueError, match="need `training"):
        ExperimentConfig(model=model, training=TrainingConfig(**sizes))


def test_evaluations_that_decide_belong_to_what_the_run_is():
    plain = toy_experiment(training={"evaluate_every_steps": 2})
    led = toy_experiment(
        training={"evaluate_every_steps": 2, "average_weights_after_evaluations": 5}
    )
    assert "evaluation" not in identity(plain, {})
    assert identity(led, {})["training"]["average_weights_after_evaluations"] == 5
    assert identity(led, {})["training"]["evaluate_every_steps"] == 2
