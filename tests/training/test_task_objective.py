"""Training loss of a task by its definition."""

import numpy as np
import pytest
import tensorflow as tf

from tests.training.task_experiments import task_experiment, task_reader
from txl_tf.evaluation.task_evaluator import TaskEvaluator
from txl_tf.models import create_model
from txl_tf.models.headed import pad_token_ids
from txl_tf.training.objectives.example_reader import ExamplePlan
from txl_tf.training.objectives.objective import Batch
from txl_tf.training.objectives.task_objective import TaskObjective


def cross_entropy(logits, target):
    shifted = np.asarray(logits, np.float64) - np.max(logits)
    return np.log(np.exp(shifted).sum()) - shifted[target]


def loss_of(kind, outputs, target, weights):
    """Loss of one example by its definition."""
    if kind == "regression":
        return (outputs[0] - target) ** 2
    return cross_entropy(outputs, target) * weights[target]


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_the_loss_is_the_mean_over_examples_read_alone(kind):
    weights = [0.5, 2.0] if kind == "classification" else None
    task = {"class_weights": weights, "head_dropout": 0.0}
    experiment = task_experiment(kind, task=task)
    model = create_model(experiment.model.replace(dropout=0.0))
    objective = TaskObjective(model, experiment)
    encoded, reader = task_reader(experiment)
    batch = next(iter(reader.dataset_fn(0, range(4), 4, 1)))
    row_weights = tf.constant([1.0, 1.0, 1.0, 0.0])
    inputs = Batch(batch, (), tf.zeros([4, 2], tf.int32), row_weights)
    total, row_losses, memory = objective(inputs)
    assert memory == ()

    plan = ExamplePlan(num_examples=7, num_rows=4, seed=1, fingerprint="f")
    for row, number in enumerate(plan.examples_of(0, 1)[0][:3]):
        text = encoded.token_ids[slice(*encoded.offsets[number:][:2])].tolist()
        outputs = objective.headed_model(pad_token_ids([text])).numpy()[0]
        expected = loss_of(kind, outputs, encoded.targets[number], weights)
        assert row_losses[row].numpy() * 4 == pytest.approx(expected, rel=1e-5)
    assert row_losses[3].numpy() == 0.0
    assert total.numpy() == pytest.approx(row_losses.numpy().sum())


def test_products_are_exact_while_a_task_is_evaluated(rounds_products):
    experiment = task_experiment("classification")
    evaluator, during = TaskEvaluator(experiment), []

    def track(begins, num_batches):
        for begin in begins:
            during.append(rounds_products())
            yield begin

    evaluator.outputs(task_reader(experiment)[0], track)
    assert set(during) == {False} and rounds_products()
