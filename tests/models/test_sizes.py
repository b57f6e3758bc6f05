"""Sizes of models and operations per token."""

import dataclasses

import numpy as np
import pytest

from pipelines.configs import NAMED_EXPERIMENTS
from tests.toy_batches import toy_experiment
from txl_tf.config.model import LSTMConfig, QRNNConfig
from txl_tf.models import create_model
from txl_tf.models.sizes import (
    num_embedding_parameters,
    num_parameters,
    run_flops_per_token,
)


def flops(experiment, **training):
    changed = dataclasses.replace(experiment.training, **training)
    return run_flops_per_token(experiment.replace(training=changed))


def test_a_token_of_training_takes_what_the_compiled_step_does():
    """The compiled step of a TPU takes 10.8 million, by its own count."""
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
