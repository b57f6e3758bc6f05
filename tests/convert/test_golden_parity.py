"""Converted models compute the results of the original models."""

import pytest

from tests.convert.goldens import FOLDER, HUGGING_FACE, TENSORFLOW, Golden
from txl_tf.convert import load_official_tensorflow

TOLERANCE = 2e-5
COMMON = {"nll", "last_hidden", "memory_out"}


@pytest.mark.parametrize("name", [*TENSORFLOW, *HUGGING_FACE])
def test_a_converted_model_computes_the_numbers_of_the_original(name):
    golden = Golden(name)
    differences = golden.differences(golden.load())
    more = {"log_probs", "attention_last_layer"} if name in HUGGING_FACE else set()
    assert differences.keys() == COMMON | more
    assert max(differences.values()) <= TOLERANCE, differences


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
