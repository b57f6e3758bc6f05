"""Training on all positions of a segment, or on its last half."""

import numpy as np
import pytest
import tensorflow as tf

from tests.slow_case import slow_case
from tests.toy_batches import ToyBatches, largest_relative_difference, toy_tokens
from tests.toy_trainers import NUM_ROWS, toy_trainer


def trainer_of(segment_length, num_replicas=1):
    batches = ToyBatches(toy_tokens(), NUM_ROWS, segment_length)
    trainer = toy_trainer(
        batches,
        num_replicas,
        model={"segment_length": segment_length},
        training={"num_steps": 3, "loss_positions": "last_half"},
    )
    return trainer, batches


def weighted_loss(model, batch, memory, counted):
    """The loss written as a weighted mean over all positions."""
    nll, memory = model.score(batch["token_ids"], batch["target_ids"], memory)
    weights = np.zeros(nll.shape, "float32")
    weights[:, list(counted)] = 1.0
    return tf.reduce_sum(nll * weights) / np.sum(weights), memory


@pytest.mark.parametrize(
    ("segment_length", "counted"), [slow_case(6, [3, 4, 5]), (5, [2, 3, 4]), slow_case(1, [0])]
)
def test_the_loss_is_the_mean_over_the_last_half(segment_length, counted):
    trainer, batches = trainer_of(segment_length)
    reports = trainer.run()
    memory = trainer.model.initial_memory(NUM_ROWS)
    for step in range(3):
        batch = batches.batch(step)
        with tf.GradientTape() as tape:
            loss, memory = weighted_loss(trainer.model, batch, memory, counted)
        gradients = tape.gradient(loss, [each.value for each in trainer.model.trainable_variables])
        norm = tf.linalg.global_norm([tf.convert_to_tensor(each) for each in gradients])
        report = next(reports)
        assert report.nats_per_token == pytest.approx(float(loss), rel=1e-5)
        assert report.gradient_norm == pytest.approx(float(norm), rel=1e-4)


@pytest.mark.slow
def test_two_replicas_train_on_the_last_half_as_one_does():
    one, _ = trainer_of(5)
    two, _ = trainer_of(5, num_replicas=2)
    for first, second in zip(one.run(), two.run(), strict=True):
        assert second.nats_per_token == pytest.approx(first.nats_per_token, rel=1e-5)
    assert largest_relative_difference(one.state(), two.state()) <= 1e-5
