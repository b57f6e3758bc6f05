"""Spikes are skipped; ordinary steps never are."""

import numpy as np
import pytest
import tensorflow as tf

from tests.slow_case import slow_case
from tests.toy_batches import ToyBatches, strategy_of, toy_experiment, toy_tokens, weight_of
from txl_tf.training.step_guard import SpikeDetector
from txl_tf.training.step_report import StepStatus
from txl_tf.training.trainer import Trainer


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


@pytest.mark.slow
def test_ten_thousand_ordinary_steps_are_not_spikes_and_twenty_spikes_are():
    random = np.random.default_rng(3)
    feed = Feeder(deviations=6.0)
    # A loss that falls as in training, and a norm that scatters.
    steps = np.arange(10_000)
    losses = 3.0 + 3.0 * np.exp(-steps / 800.0) + random.normal(0.0, 0.05, len(steps))
    norms = 1.0 + np.abs(random.normal(0.0, 0.2, len(steps)))
    spikes = set(random.choice(np.arange(500, 10_000), 20, replace=False).tolist())
    found = {
        step
        for step in steps.tolist()
        if feed(losses[step] + (0.6 if step in spikes else 0.0), norms[step])
    }
    assert found == spikes


@pytest.mark.parametrize(("loss", "norm"), [(4.0, 1.0), (3.0, 9.0)])
def test_either_figure_makes_a_spike_but_not_before_a_hundred_steps(loss, norm):
    random = np.random.default_rng(0)
    feed = Feeder(deviations=6.0)
    assert not feed(loss, norm)
    for _ in range(99):
        feed(3.0 + random.normal(0.0, 0.01), 1.0 + random.normal(0.0, 0.01))
    for _ in range(200):
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
    before = trainer.state()
    report = next(trainer.run())
    assert report.records[0].status == StepStatus.SKIPPED_SPIKE
    assert report.num_skipped_steps == len(report.records)
    after = trainer.state()
    for name in before:
        if name.startswith(("model/", "optimizer/")) and not name.endswith("/iteration"):
            np.testing.assert_array_equal(after[name], before[name], err_msg=name)
    bias.assign(sound)
    assert next(trainer.run()).num_skipped_steps == 0


@pytest.mark.slow
def test_a_run_that_is_resumed_judges_as_the_unbroken_one():
    def new_trainer():
        experiment = toy_experiment(training={"num_steps": 8, "spike_deviations": 4.0})
        batches = ToyBatches(toy_tokens(), 4)
        return Trainer(experiment, strategy_of(1), batches.dataset_function)

    unbroken = new_trainer()
    reports = unbroken.run()
    for _ in range(4):
        next(reports)
    half_way = unbroken.state()
    list(reports)
    resumed = new_trainer()
    resumed.load_state(half_way)
    list(resumed.run())
    assert half_way["spikes/num_steps"] == 4.0
    for name, array in resumed.state().items():
        np.testing.assert_array_equal(array, unbroken.state()[name], err_msg=name)
