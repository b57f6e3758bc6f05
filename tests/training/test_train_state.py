"""History of evaluations, average of the weights and its trigger, and the detection of spikes."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.slow_case import slow_case
from tests.toy_batches import ToyBatches, strategy_of, toy_experiment, toy_tokens, weight_of
from txl_tf.model_folder import deciding_settings
from txl_tf.training.ledger import StepStatus
from txl_tf.training.train_state import (
    EvaluationHistory,
    NonMonotoneTrigger,
    SpikeDetector,
    WeightAverage,
)
from txl_tf.training.train_step import guarded_update
from txl_tf.training.trainer import Trainer


def test_the_best_and_the_last_are_told_apart():
    history = EvaluationHistory()
    found = [history.observe(step, nats) for step, nats in [(10, 3.0), (20, 2.5), (30, 2.7)]]
    assert found == [True, True, False]
    assert (history.last_step, history.best_step, history.best_nats_per_token) == (30, 20, 2.5)
    assert not EvaluationHistory().observe(10, float("nan"))


def test_a_history_goes_on_from_its_state():
    losses = [3.0, 2.5, 2.7, 2.6, 2.4]
    unbroken, resumed = EvaluationHistory(), EvaluationHistory()
    decisions = [unbroken.observe(step, loss) for step, loss in enumerate(losses)]
    interrupted = EvaluationHistory()
    for step in range(3):
        interrupted.observe(step, losses[step])
    assert all(np.isfinite(array).all() for array in interrupted.state().values())
    resumed.load_state(interrupted.state())
    assert [resumed.observe(step, losses[step]) for step in (3, 4)] == decisions[3:]
    assert resumed.state() == unbroken.state()


def weights_of(trainer):
    return {variable.path: variable.numpy() for variable in trainer.model.weights}


class ToySteps:
    """An average over a single weight that is set by hand, and steps that may be taken back."""

    def __init__(self, first_step, decay=None, num_replicas=1):
        self.strategy = strategy_of(num_replicas)
        with self.strategy.scope():
            self.weight = keras.Variable(np.zeros(2), dtype="float32", name="weight")
            self.average = WeightAverage([self.weight], first_step, decay)
        variables = [self.weight, *self.average.variables.values()]
        changed = [variable.value for variable in variables]

        @tf.function
        def run_step(weight, step, is_applied):
            def update():
                self.weight.assign(weight)
                self.average.update(step)

            self.strategy.run(lambda: guarded_update(changed, update, is_applied))

        self._run_step = run_step

    def run(self, weights, first_step=1):
        """Averages after each step; a weight of None is a step that is skipped."""
        averages = []
        for step, weight in enumerate(weights, first_step):
            given = np.full(2, np.nan if weight is None else weight, np.float32)
            self._run_step(tf.constant(given), tf.constant(step), tf.constant(weight is not None))
            averages.append(float(self.average.averages["weight"].numpy()[0]))
        return averages


def test_steps_that_are_skipped_have_no_share_in_the_mean():
    averages = ToySteps(first_step=2).run([8.0, 3.0, None, 6.0, None, None, 0.0])
    assert averages == pytest.approx([8.0, 3.0, 3.0, 4.5, 4.5, 4.5, 3.0])
    # A first step that is skipped leaves the beginning to the next.
    averages = ToySteps(first_step=2).run([8.0, None, 6.0, 2.0])
    assert averages == pytest.approx([8.0, 8.0, 6.0, 4.0])


@pytest.mark.parametrize("num_replicas", [1, slow_case(2)])
def test_with_a_decay_older_steps_count_less(num_replicas):
    steps = ToySteps(first_step=2, decay=0.75, num_replicas=num_replicas)
    averages = steps.run([8.0, 4.0, 8.0, None, 1.0])
    # From the second step on a quarter of the new weight each.
    assert averages == pytest.approx([8.0, 4.0, 5.0, 5.0, 4.0])
    for name, variable in steps.average.variables.items():
        copies = steps.strategy.experimental_local_results(variable.value)
        for copy in copies:
            np.testing.assert_array_equal(copy.numpy(), copies[0].numpy(), err_msg=name)


class Feeder:
    """A detector that is fed numbers outside of a training step."""

    def __init__(self, deviations):
        self.detector = SpikeDetector(deviations)
        self._feed = tf.function(self._feed_one)

    def _feed_one(self, loss, norm):
        is_spike = self.detector.is_spike(loss, norm)
        values = self.detector.next_values(loss, norm)
        for variable, value in zip(self.detector.variables.values(), values, strict=True):
            variable.assign(value)
        return is_spike

    def __call__(self, loss, norm):
        return bool(self._feed(tf.constant(loss, tf.float32), tf.constant(norm, tf.float32)))


@pytest.mark.parametrize(("loss", "norm"), [(4.0, 1.0), (3.0, 9.0)])
def test_either_figure_makes_a_spike_but_not_before_a_hundred_steps(loss, norm):
    random = np.random.default_rng(0)
    feed = Feeder(deviations=6.0)
    assert not feed(loss, norm)
    for _ in range(299):
        feed(3.0 + random.normal(0.0, 0.01), 1.0 + random.normal(0.0, 0.01))
    assert feed(loss, norm)


def test_a_loss_that_has_risen_for_good_becomes_ordinary():
    random = np.random.default_rng(1)
    feed = Feeder(deviations=6.0)
    for _ in range(300):
        feed(2.0 + random.normal(0.0, 0.01), 1.0)
    risen = [feed(2.5 + random.normal(0.0, 0.01), 1.0) for _ in range(200)]
    assert risen[0]
    assert not any(risen[-50:])


@pytest.mark.parametrize("num_replicas", [1, slow_case(2)])
def test_a_skipped_spike_changes_no_bit_of_weights_and_slots(num_replicas):
    batches = ToyBatches(toy_tokens(), 4)
    experiment = toy_experiment(
        training={"num_steps": 140, "steps_per_loop": 10, "spike_deviations": 6.0}
    )
    trainer = Trainer(experiment, strategy_of(num_replicas), batches.dataset_function)
    reports = trainer.run()
    while trainer.step < 120:
        assert next(reports).num_skipped_steps == 0
    reports.close()
    bias = weight_of(trainer.model, "softmax/bias")
    sound = bias.numpy()
    bias.assign(sound + np.where(np.arange(len(sound)) == 2, 30.0, 0.0))
    before = trainer.arrays()
    report = next(trainer.run())
    assert report.records[0].status == StepStatus.SKIPPED_SPIKE
    assert report.num_skipped_steps == len(report.records)
    after = trainer.arrays()
    for name in before:
        if name.startswith(("model/", "optimizer/")) and not name.endswith("/iteration"):
            np.testing.assert_array_equal(after[name], before[name], err_msg=name)
    bias.assign(sound)
    assert next(trainer.run()).num_skipped_steps == 0


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


def triggered_trainer():
    batches = ToyBatches(toy_tokens(), 4)
    values = {
        "num_steps": 8,
        "jit_compile": False,
        "evaluate_every_steps": 1,
        "average_weights_after_evaluations": 1,
        "spike_deviations": 4.0,
    }
    # The weights move to the last step.
    optimizer = {"learning_rate": 3e-2, "schedule": "constant"}
    experiment = toy_experiment(training=values, optimizer=optimizer, model={"dropout": 0.2})
    return Trainer(experiment, strategy_of(1), batches.dataset_function)


EVALUATIONS = [5.0, 4.0, 4.1, 3.0, 4.5, 1.0, 1.0, 1.0]
"""By step: the third is the first that is worse than what was there one evaluation ago."""


def run_of(trainer, history):
    """The losses, states and histories after each step, each of which is evaluated."""
    steps = []
    for report in trainer.run():
        history.observe(report.step, EVALUATIONS[report.step - 1])
        state = trainer.arrays() | history.state()
        weights = weights_of(trainer), trainer.state.inference_weights()
        steps.append((report.nats_per_token, *weights, state))
    return steps


@pytest.fixture(scope="module")
def triggered():
    trainer = triggered_trainer()
    return run_of(trainer, EvaluationHistory(*trainer.state.observers))


def test_weights_are_averaged_from_the_step_after_the_trigger(triggered):
    first = looped(EVALUATIONS, 1).index(True) + 1  # the steps that are done then
    assert first == 5
    for step, (_, weights, averages, _) in enumerate(triggered, 1):
        counted = [each for _, each, _, _ in triggered[first:step]] or [weights]
        for path, average in averages.items():
            mean = np.mean([np.float64(each[path]) for each in counted], axis=0)
            np.testing.assert_allclose(average, mean, rtol=0, atol=1e-6, err_msg=path)
    table = "embedding/table"
    assert np.abs(triggered[-1][1][table] - triggered[-1][2][table]).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("stop", [2, 6])
def test_a_resumed_run_is_the_unbroken_one_bit_for_bit(triggered, stop):
    trainer = triggered_trainer()
    history = EvaluationHistory(*trainer.state.observers)
    state = dict(triggered[stop - 1][3])
    history.load_state({name: state.pop(name) for name in history.state()})
    trainer.load_arrays(state)
    for found, expected in zip(run_of(trainer, history), triggered[stop:], strict=True):
        assert found[0] == expected[0]
        assert found[3].keys() == expected[3].keys()
        for name, array in found[3].items():
            np.testing.assert_array_equal(array, expected[3][name], err_msg=name)
    for part in ("average_trigger/", "spikes/"):
        assert any(name.startswith(part) for name in state)


def test_evaluations_that_decide_belong_to_what_the_run_is():
    plain = toy_experiment(training={"evaluate_every_steps": 2})
    led = toy_experiment(
        training={"evaluate_every_steps": 2, "average_weights_after_evaluations": 5}
    )
    assert "evaluation" not in deciding_settings(plain, {})
    assert deciding_settings(led, {})["training"]["average_weights_after_evaluations"] == 5
    assert deciding_settings(led, {})["training"]["evaluate_every_steps"] == 2
