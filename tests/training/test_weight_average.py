"""The average of the weights after each step from some step on."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.slow_case import slow_case
from tests.toy_batches import ToyBatches, strategy_of, toy_experiment, toy_tokens
from txl_tf.training.step_guard import GuardedUpdate
from txl_tf.training.trainer import Trainer
from txl_tf.training.weight_average import WeightAverage

NUM_STEPS = 9
FIRST_STEP = 4


def trainer_of(first_step, num_replicas=1, **training):
    batches = ToyBatches(toy_tokens(), 4)
    experiment = toy_experiment(
        training={
            "num_steps": NUM_STEPS,
            "average_weights_from_step": first_step,
            **training,
        },
        optimizer={"learning_rate": 3e-2},
    )
    return Trainer(experiment, strategy_of(num_replicas), batches.dataset_function)


def weights_of(trainer):
    return {variable.path: variable.numpy() for variable in trainer.model.weights}


def assert_close(averages, expected, tolerance):
    assert averages.keys() == expected.keys()
    for path, array in averages.items():
        np.testing.assert_allclose(array, expected[path], rtol=0, atol=tolerance, err_msg=path)


@functools.cache
def recorded(num_replicas=1, jit_compile=False):
    """Of a run that averages: its trainer, and losses, weights, averages, states by step."""
    trainer = trainer_of(FIRST_STEP, num_replicas, jit_compile=jit_compile)
    steps = [
        (
            report.nats_per_token,
            weights_of(trainer),
            trainer.inference_weights(),
            trainer.state(),
        )
        for report in trainer.run()
    ]
    return trainer, *zip(*steps, strict=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_replicas", "jit_compile"), [(1, False), (1, True), (2, False)], ids=str
)
def test_it_is_the_mean_of_the_recorded_weights(num_replicas, jit_compile):
    _, _, weights, averages, _ = recorded(num_replicas, jit_compile)
    for step in range(1, NUM_STEPS + 1):
        if step <= FIRST_STEP:
            assert_close(averages[step - 1], weights[step - 1], 0.0)
            continue
        counted = weights[FIRST_STEP - 1 : step]
        mean = {
            path: np.mean([np.float64(each[path]) for each in counted], axis=0)
            for path in weights[0]
        }
        assert_close(averages[step - 1], mean, 1e-6)
    table = "embedding/table"
    assert np.abs(averages[-1][table] - weights[-1][table]).max() > 1e-2


@pytest.mark.slow
def test_every_replica_has_the_same_average():
    trainer, *_ = recorded(num_replicas=2)
    variables = trainer._variables.by_name()
    averages = [name for name in variables if name.startswith("average/")]
    assert averages
    for name in averages:
        first, second = trainer.strategy.experimental_local_results(variables[name].value)
        np.testing.assert_array_equal(first.numpy(), second.numpy(), err_msg=name)


def test_before_the_first_step_it_is_the_initial_weights():
    trainer = trainer_of(1)
    assert_close(trainer.inference_weights(), weights_of(trainer), 0.0)


@pytest.mark.slow
def test_training_goes_on_from_the_weights_and_not_from_the_average():
    _, losses, weights, _, _ = recorded()
    plain = trainer_of(None)
    assert tuple(report.nats_per_token for report in plain.run()) == losses
    assert_close(weights_of(plain), weights[-1], 0.0)
    # Without an average, the weights are used and nothing is stored.
    assert_close(plain.inference_weights(), weights[-1], 0.0)
    assert not [name for name in plain.state() if name.startswith("average/")]


@pytest.mark.slow
def test_resuming_goes_on_with_the_average():
    _, _, _, averages, states = recorded()
    resumed = trainer_of(FIRST_STEP)
    for step in (2, 5):
        resumed.load_state(states[step - 1])
        list(resumed.run())
        assert_close(resumed.inference_weights(), averages[-1], 0.0)
    without = {name: array for name, array in states[0].items() if "average/" not in name}
    with pytest.raises(ValueError, match="average/"):
        resumed.load_state(without)


@pytest.mark.slow
def test_a_loop_of_several_steps_counts_every_step():
    _, _, _, averages, _ = recorded()
    together = trainer_of(FIRST_STEP, steps_per_loop=NUM_STEPS)
    list(together.run())
    assert_close(together.inference_weights(), averages[-1], 0.0)


class ToySteps:
    """An average over a single weight that is set by hand, and steps that may be taken back."""

    def __init__(self, first_step, decay=None, num_replicas=1):
        self.strategy = strategy_of(num_replicas)
        with self.strategy.scope():
            self.weight = keras.Variable(np.zeros(2), dtype="float32", name="weight")
            self.average = WeightAverage([self.weight], first_step, decay)
        changed = [self.weight, *self.average.variables.values()]
        guarded_update = GuardedUpdate([variable.value for variable in changed])

        @tf.function
        def run_step(weight, step, is_applied):
            def update():
                self.weight.assign(weight)
                self.average.update(step)

            self.strategy.run(lambda: guarded_update(update, is_applied))

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


def test_a_first_step_that_is_skipped_leaves_the_beginning_to_the_next():
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


@pytest.mark.parametrize("decay", [None, 0.75])
def test_its_variables_are_all_its_state(decay):
    weights = [8.0, 4.0, None, 7.0, 1.0, 5.0]
    whole = ToySteps(first_step=2, decay=decay)
    whole.run(weights[:4])
    state = {name: variable.numpy() for name, variable in whole.average.variables.items()}
    resumed = ToySteps(first_step=2, decay=decay)
    for name, array in state.items():
        resumed.average.variables[name].assign(array)
    assert resumed.run(weights[4:], first_step=5) == whole.run(weights[4:], first_step=5)


def test_a_run_with_a_decay_has_the_exponential_average_of_its_weights():
    trainer = trainer_of(FIRST_STEP, average_weights_decay=0.6)
    weights = []
    for _ in trainer.run():
        weights.append(weights_of(trainer))
    average = {path: np.float64(array) for path, array in weights[FIRST_STEP - 1].items()}
    for each in weights[FIRST_STEP:]:
        average = {path: 0.6 * array + 0.4 * each[path] for path, array in average.items()}
    assert_close(trainer.inference_weights(), average, 1e-6)


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.5])
def test_a_decay_that_is_none_is_refused(decay):
    with pytest.raises(ValueError, match=f"Received: decay={decay}"):
        WeightAverage([], 1, decay)
