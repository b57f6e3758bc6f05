"""Training on a task: the loss follows its definition."""

import numpy as np
import pytest
import tensorflow as tf

from tests.small_models import small_config, strategy_of
from tests.tasks.test_example_encoding import BYTES, example
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.models import create_model
from txl_tf.models.headed import pad_token_ids
from txl_tf.tasks.encoding import encode_examples
from txl_tf.training.fine_tuning import (
    ExamplePlan,
    ExampleReader,
    TaskBatch,
    TaskObjective,
)
from txl_tf.training.trainer import Trainer

T = 8
EXAMPLES = {
    "classification": [
        example("x" * (3 + 5 * n), number=n, label=("no", "yes")[n % 2]) for n in range(7)
    ],
    "regression": [example("y" * (2 + 4 * n), label=n / 3) for n in range(7)],
}


def experiment_of(kind, **sections):
    labels = ["no", "yes"] if kind == "classification" else None
    # The large epsilon is for gradients that are nearly 0: Adam would blow up their rounding.
    optimizer = {"learning_rate": 0.01, "epsilon": 1e-3}
    return ExperimentConfig.from_dict(
        {
            "model": small_config(T, T, vocabulary_size=256, num_layers=1, dropout=0.1).to_dict(),
            "training": {
                "global_batch_size": 4,
                "num_steps": 6,
                "steps_per_loop": 3,
                "seed": 1,
                "jit_compile": False,
                **sections.get("training", {}),
            },
            "optimizer": {**optimizer, **sections.get("optimizer", {})},
            "task": {
                "kind": kind,
                "labels": labels,
                "metric": "accuracy",
                **sections.get("task", {}),
            },
        }
    )


def reader_of(experiment):
    encoded = encode_examples(experiment.task, BYTES, EXAMPLES[experiment.task.kind])
    num_rows = experiment.training.global_batch_size
    plan = ExamplePlan(num_examples=7, num_rows=num_rows, seed=1, fingerprint="f")
    return encoded, ExampleReader(encoded, plan, T)


def trainer_of(experiment, num_replicas=1):
    _, reader = reader_of(experiment)
    strategy = strategy_of(num_replicas)
    return Trainer(experiment, strategy, reader.dataset_fn, objective_class=TaskObjective)


def cross_entropy(logits, target):
    shifted = np.asarray(logits, np.float64) - np.max(logits)
    return np.log(np.exp(shifted).sum()) - shifted[target]


def loss_of(kind, outputs, target, weights):
    """Loss of one example by its definition."""
    if kind == "regression":
        return (outputs[0] - target) ** 2
    return cross_entropy(outputs, target) * weights[target]


@pytest.mark.parametrize("kind", EXAMPLES)
def test_the_loss_is_the_mean_over_examples_read_alone(kind):
    weights = [0.5, 2.0] if kind == "classification" else None
    task = {"class_weights": weights, "head_dropout": 0.0}
    experiment = experiment_of(kind, task=task)
    model = create_model(experiment.model.replace(dropout=0.0))
    objective = TaskObjective(model, experiment)
    encoded, reader = reader_of(experiment)
    batch = next(iter(reader.dataset_fn(0, range(4), 4, 1)))
    row_weights = tf.constant([1.0, 1.0, 1.0, 0.0])
    inputs = TaskBatch.of(batch, (), tf.zeros([4, 2], tf.int32), row_weights)
    total, row_losses, memory = objective(inputs)
    assert memory == ()

    plan = ExamplePlan(num_examples=7, num_rows=4, seed=1, fingerprint="f")
    for row, number in enumerate(plan.positions(0)[:3]):
        text = encoded.token_ids[slice(*encoded.offsets[number:][:2])].tolist()
        outputs = objective.headed_model(pad_token_ids([text])).numpy()[0]
        expected = loss_of(kind, outputs, encoded.targets[number], weights)
        assert row_losses[row].numpy() * 4 == pytest.approx(expected, rel=1e-5)
    assert row_losses[3].numpy() == 0.0
    assert total.numpy() == pytest.approx(row_losses.numpy().sum())
