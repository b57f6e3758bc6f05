"""Models by name: their sizes, and a count of parameters that needs no model."""

import itertools

import keras
import pytest

from tests.small_models import small_config
from txl_tf.models.presets import preset
from txl_tf.models.sizes import num_parameters
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


def test_the_smallest_published_model_is_built_as_counted():
    config = preset("enwik8_base")
    assert built_parameters(config) == num_parameters(config)


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
def test_the_count_is_that_of_the_built_model(changes):
    config = SMALL.replace(**changes)
    assert num_parameters(config) == built_parameters(config)


@pytest.mark.parametrize(("cutoffs", "embedding_dim"), [((), 6), ((7,), None), ((5, 12), 16)])
def test_the_count_is_that_of_the_built_model_for_every_vocabulary(cutoffs, embedding_dim):
    for factor, share, same_dim, tie in itertools.product([1, 2], *[[False, True]] * 3):
        config = SMALL.replace(
            cutoffs=cutoffs,
            embedding_dim=embedding_dim,
            division_factor=factor,
            share_tail_projections=share,
            project_same_dim=same_dim,
            tie_weights=tie,
            num_layers=1,
        )
        assert num_parameters(config) == built_parameters(config), config


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"enwik8_base, .*wikitext103_large. Received: enwik9"):
        preset("enwik9")
