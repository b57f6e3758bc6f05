"""Average of the weights over the steps of a run."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.slow_case import slow_case
from tests.small_models import strategy_of, toy_trainer
from txl_tf.training.train_step import guarded_update
from txl_tf.training.weight_average import WeightAverage


class ToySteps:
    """An average over a single weight that is set by hand, and steps that may be taken back."""

    def __init__(self, first_step, decay=None, num_replicas=1):
        self.strategy = strategy_of(num_replicas)
        with self.strategy.scope():
            self.weight = keras.Variable(np.zeros(2), dtype="float32", name="weight")
            self.average = WeightAverage([self.weight], first_step, decay)
        changed = [self.weight, *self.average.variables.values()]

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
            new = np.full(2, np.nan if weight is None else weight, np.float32)
            self._run_step(tf.constant(new), tf.constant(step), tf.constant(weight is not None))
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


def test_an_average_of_a_run_is_the_mean_of_its_weights_after_each_step():
    trainer = toy_trainer(
        training={"num_steps": 6, "average_weights_from_step": 4},
        optimizer={"learning_rate": 3e-2, "schedule": "constant"},
    )
    weights = []
    for _ in trainer.run():
        weights.append({each.path: each.numpy() for each in trainer.model.weights})
    for path, average in trainer.state.inference_weights().items():
        mean = np.mean([np.float64(each[path]) for each in weights[3:]], axis=0)
        np.testing.assert_allclose(average, mean, rtol=0, atol=1e-6, err_msg=path)
