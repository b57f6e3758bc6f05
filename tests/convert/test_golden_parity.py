"""Converted models compute what the originals computed."""

import pytest

from tests.convert.goldens import FOLDER, HUGGING_FACE, TENSORFLOW, Golden
from txl_tf.convert import load_official_tensorflow

TOLERANCE = 2e-5
COMMON = {"nll", "last_hidden", "memory_out"}


@pytest.mark.parametrize("name", TENSORFLOW)
def test_official_tensorflow(name):
    golden = Golden(name)
    differences = golden.differences(golden.load())
    assert differences.keys() == COMMON
    assert max(differences.values()) <= TOLERANCE, differences


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_hugging_face(name):
    golden = Golden(name)
    differences = golden.differences(golden.load())
    assert differences.keys() == COMMON | {"log_probs", "attention_last_layer"}
    assert max(differences.values()) <= TOLERANCE, differences


@pytest.mark.parametrize("name", TENSORFLOW)
def test_sizes_are_read_off_the_shapes(name):
    golden = Golden(name)
    config, theirs = golden.load().config, golden.config
    assert config.num_layers == theirs["n_layer"]
    assert (config.num_heads, config.head_dim) == (theirs["n_head"], theirs["d_head"])
    assert (config.hidden_dim, config.embedding_dim) == (theirs["d_model"], theirs["d_embed"])
    assert config.intermediate_dim == theirs["d_inner"]
    assert config.vocabulary_size == theirs["n_token"]
    assert config.cutoffs == tuple(theirs["cutoffs"])
    assert config.division_factor == theirs["div_val"]
    assert config.share_attention_biases == (not theirs["untie_r"])
    assert config.share_tail_projections == theirs["proj_share_all_but_first"]
    assert config.layer_norm_epsilon == theirs["layer_norm_epsilon"]
    assert config.same_length_keys == "memory_and_self"


def test_the_numbers_tell_clusters_in_the_wrong_order_apart():
    golden = Golden("hf_adaptive_div4")
    model = golden.load()
    for variable in (model.softmax.cluster_weight, model.softmax.cluster_bias):
        variable.assign(variable.numpy()[::-1])
    assert golden.differences(model)["nll"] > 1e-3


@pytest.mark.parametrize("change", [{"clamp_length": None}, {"same_length_keys": "memory"}])
def test_the_numbers_tell_other_conventions_apart(change):
    golden = Golden("tf1_wt103_like")
    prefix = FOLDER / golden.name / "model.ckpt-0"
    model = load_official_tensorflow(prefix, **{**golden.settings, **change})
    assert golden.differences(model)["nll"] > 1e-4
