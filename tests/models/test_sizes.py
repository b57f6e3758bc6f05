"""The cost of a checkpoint, beside one that is written."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from pipelines.compile import NOTICE_SECONDS, checkpoint_cost
from pipelines.configs import NAMED_EXPERIMENTS
from tests.toy_batches import toy_experiment
from txl_tf.config.experiment import OptimizerConfig
from txl_tf.config.model import LSTMConfig, QRNNConfig
from txl_tf.models import create_model
from txl_tf.models.sizes import (
    num_embedding_parameters,
    num_parameters,
    run_flops_per_token,
)
from txl_tf.training.trainer import Trainer


@pytest.mark.parametrize(
    ("name", "average"),
    [("adam", None), ("sgd", 1)],
)
def test_the_bytes_are_those_of_the_state(name, average):
    experiment = toy_experiment()
    experiment = experiment.replace(
        model=experiment.model.replace(hidden_dim=64, intermediate_dim=512, memory_length=32),
        optimizer=OptimizerConfig(name=name, learning_rate=1e-3),
        training=experiment.training.replace(average_weights_from_step=average),
    )
    trainer = Trainer(experiment, tf.distribute.get_strategy(), dataset_function=None)
    written = sum(array.nbytes for array in trainer.arrays().values())
    assert checkpoint_cost(experiment)["bytes"] == pytest.approx(written, rel=0.02)


def test_large_checkpoints_do_not_fit_the_notice_and_small_ones_do():
    large = checkpoint_cost(NAMED_EXPERIMENTS["lm1b_large"]())
    assert large["bytes"] > 10e9
    assert large["upload_seconds"] > NOTICE_SECONDS
    assert not large["fits_notice"]
    assert checkpoint_cost(NAMED_EXPERIMENTS["enwik8_base"]())["fits_notice"]


def flops(experiment, **training):
    changed = dataclasses.replace(experiment.training, **training)
    return run_flops_per_token(experiment.replace(training=changed))


def test_a_token_of_training_takes_what_the_compiled_step_does():
    """BUILD_NOTES has 10.8 million of the compiled step, of `txl compile`."""
    assert flops(NAMED_EXPERIMENTS["quickstart"]()) == pytest.approx(10.8e6, rel=0.02)


def test_weights_that_are_not_trained_take_fewer_operations():
    experiment = NAMED_EXPERIMENTS["enwik8_base"]()
    whole = flops(experiment)
    upper, lower = flops(experiment, freeze=("layers:6-11",)), flops(experiment, freeze=("layers",))
    assert lower < upper < whole
    # Nothing below the lowest weight that is trained has a gradient: a third of its operations.
    last = flops(experiment, freeze=("embedding", "layers:0-10"))
    assert whole / 3 < last < 0.45 * whole
    # A frozen weight keeps two of three products; adapters add little.
    assert 2 / 3 * whole < flops(experiment, adapter_rank=8) < 0.8 * whole
    assert flops(experiment, adapter_rank=8) < flops(experiment, adapter_rank=64) < whole


@pytest.mark.parametrize("kind", [LSTMConfig, QRNNConfig])
def test_a_recurrent_model_takes_six_operations_for_each_weight(kind):
    sizes = {"vocabulary_size": 50, "hidden_dim": 64, "num_layers": 2, "embedding_dim": 32}
    model = kind(segment_length=8, **sizes)
    experiment = toy_experiment().replace(model=model)
    # Embeddings are looked up; biases are few.
    assert flops(experiment) == pytest.approx(6 * num_parameters(model), rel=0.05)


def test_embeddings_are_those_of_the_model():
    config = LSTMConfig(vocabulary_size=11, hidden_dim=6, num_layers=1, segment_length=4)
    tables = [each for each in create_model(config).weights if each.shape == (11, config.table_dim)]
    assert num_embedding_parameters(config) == int(np.prod(tables[0].shape))
