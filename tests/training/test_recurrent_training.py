"""The recurrent baselines in the trainer: a Transformer-XL's steps, states and resumes."""

import functools

import numpy as np
import pytest

from tests.slow_case import slow_case
from tests.toy_batches import (
    SEGMENT_LENGTH,
    VOCABULARY_SIZE,
    ToyBatches,
    largest_relative_difference,
    strategy_of,
    toy_experiment,
    toy_tokens,
)
from txl_tf.config.model import LSTMConfig, QRNNConfig
from txl_tf.training.trainer import Trainer

NUM_ROWS = 4
NUM_STEPS = 8
HALF = NUM_STEPS // 2
SIZES = {
    "vocabulary_size": VOCABULARY_SIZE,
    "num_layers": 2,
    "hidden_dim": 8,
    "segment_length": SEGMENT_LENGTH,
    "initializer_stddev": 0.3,
}
BATCHES = ToyBatches(toy_tokens(), NUM_ROWS, restarts=[(2, 1), (HALF + 1, 0)])


def new_trainer(config_class):
    experiment = toy_experiment(training={"num_steps": NUM_STEPS})
    experiment = experiment.replace(model=config_class(**SIZES, dropout=0.2))
    return Trainer(experiment, strategy_of(1), BATCHES.dataset_function)


@functools.cache
def unbroken(config_class):
    """Losses of all steps, state half way and at the end."""
    trainer, losses, half_way = new_trainer(config_class), [], None
    for report in trainer.run():
        losses.append(report.nats_per_token)
        if report.step == HALF:
            half_way = trainer.arrays()
    return losses, half_way, trainer.arrays()


@pytest.mark.parametrize("config_class", [slow_case(LSTMConfig), QRNNConfig])
def test_resuming_is_bit_identical_with_dropout(config_class):
    losses, half_way, end = unbroken(config_class)
    trainer = new_trainer(config_class)
    trainer.load_arrays(half_way)
    assert [report.nats_per_token for report in trainer.run()] == losses[HALF:]
    for name, array in trainer.arrays().items():
        np.testing.assert_array_equal(array, end[name], err_msg=name)
    assert largest_relative_difference(half_way, end) > 1e-2
