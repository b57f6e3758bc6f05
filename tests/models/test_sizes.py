"""Parameters and operations per token of models by name, counted without a model."""

import itertools

import keras
import pytest

from pipelines.configs import NAMED_EXPERIMENTS
from tests.small_models import small_config, toy_experiment
from txl_tf.config.model import LSTMConfig, QRNNConfig
from txl_tf.models.presets import preset
from txl_tf.models.sizes import num_parameters, run_flops_per_token
from txl_tf.models.transformer_xl import TransformerXL

# In millions, as others count or state them.
PUBLISHED = {
    "enwik8_18_layers": "88",
    "enwik8_base": "41.06",
    "enwik8_large": "277.2",
    "lm1b_base": "355.7",
    "lm1b_large": "838.1",
    "nvidia_wikitext103_base": "191.95",
    "nvidia_wikitext103_large": "285",
    "penn_treebank": "24",
    "text8_large": "277.05",
    "wikitext103_base": "151.1",
    "wikitext103_large": "285.2",
}
SMALL = small_config(3, 3, vocabulary_size=29, num_heads=3, head_dim=4, intermediate_dim=10)


def built_parameters(config):
    with keras.device("cpu"):
        return TransformerXL(config).count_params()


@pytest.mark.parametrize(("name", "millions"), PUBLISHED.items())
def test_presets_have_as_many_parameters_as_published(name, millions):
    decimals = len(millions.partition(".")[2])
    assert f"{num_parameters(preset(name)) / 1e6:.{decimals}f}" == millions


@pytest.mark.parametrize(
    "changes",
    [
        {"position_encoding": "transformer_xl"},
        {"position_encoding": "transformer_xl", "share_attention_biases": True},
        {"position_encoding": "shaw", "num_positions": 5},
        {"position_encoding": "sinusoidal"},
        {"position_encoding": "learned", "num_positions": 5},
        {"pre_norm": True, "residual_gate": "gru"},
        {"recurrence": False},
    ],
    ids=str,
)
def test_the_count_matches_the_built_model(changes):
    config = SMALL.replace(**changes)
    assert num_parameters(config) == built_parameters(config)


@pytest.mark.parametrize(("cutoffs", "embedding_dim"), [((), 6), ((7,), None), ((5, 12), 16)])
def test_the_count_matches_the_built_model_for_every_vocabulary(cutoffs, embedding_dim):
    sizes = SMALL.replace(cutoffs=cutoffs, embedding_dim=embedding_dim, num_layers=1)
    names = "share_tail_projections", "project_same_dim", "tie_weights"
    for factor, *options in itertools.product([1, 2], *[[False, True]] * 3):
        config = sizes.replace(division_factor=factor, **dict(zip(names, options, strict=True)))
        assert num_parameters(config) == built_parameters(config), config


def flops(experiment, **training):
    changed = experiment.training.replace(**training)
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
