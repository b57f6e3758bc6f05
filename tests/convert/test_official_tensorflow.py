"""Checkpoints of all published families, and checkpoints that are not whole."""

import numpy as np
import pytest
import tensorflow as tf

from tests.convert.models import assert_same_weights, family_config, random_model, weights_of
from txl_tf.convert import load_official_tensorflow
from txl_tf.convert.official_tensorflow import official_tensorflow_table
from txl_tf.errors import DataDamagedError, InputMissingError, MismatchError

FAMILIES = ["enwik8", "wt103_base", "wt103_large", "lm1b", "narrow", "narrow_clusters"]
BLOCK = "transformer/layer_1"


def official_tensors(model):
    """What the official code would have saved, the optimizer's state included."""
    weights = weights_of(model)
    tensors = {}
    for entry in official_tensorflow_table(model.config):
        tensors[entry.name] = entry.to_theirs(weights)
        for slot in ("Adam", "Adam_1"):
            tensors[f"{entry.name}/{slot}"] = np.full_like(tensors[entry.name], np.nan)
    tensors |= {name: np.float32(0.9) for name in ("beta1_power", "beta2_power")}
    return {**tensors, "global_step": np.int64(400000)}


def save(folder, tensors):
    prefix = folder / "model.ckpt-0"
    names = sorted(tensors)
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.convert_to_tensor(tensors[name]) for name in names],
    )
    return prefix


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_told_by_its_shapes(family, tmp_path):
    expected = random_model(family_config(family))
    prefix = save(tmp_path, official_tensors(expected))
    model = load_official_tensorflow(prefix, memory_length=8, segment_length=8)
    assert model.config == expected.config
    assert_same_weights(model, expected)


@pytest.mark.parametrize("spelling", ["", ".index", "folder"])
def test_a_checkpoint_is_found_by_prefix_index_or_folder(spelling, tmp_path):
    expected = random_model(family_config("enwik8"))
    prefix = save(tmp_path, official_tensors(expected))
    path = tmp_path if spelling == "folder" else f"{prefix}{spelling}"
    assert_same_weights(load_official_tensorflow(path, memory_length=8), expected)


def refused(tmp_path, change):
    """What is raised after `change` has had the tensors."""
    tensors = official_tensors(random_model(family_config("wt103_large")))
    change(tensors)
    with pytest.raises(MismatchError) as caught:
        load_official_tensorflow(save(tmp_path, tensors), memory_length=8)
    assert len(str(caught.value).splitlines()) == 3
    assert str(tmp_path) in str(caught.value)
    return caught.value


def test_all_differences_are_named_and_counted(tmp_path):
    def change(tensors):
        for name in [name for name in tensors if name.startswith(f"{BLOCK}/")]:
            del tensors[name]
        tensors["transformer/r_w_bias_too"] = np.zeros(3, np.float32)
        tensors["transformer/layer_2/ff/LayerNorm/beta"] = np.zeros((4, 4), np.float32)

    error = refused(tmp_path, change)
    assert len(error.differences["missing"]) == 11
    for text in ("11 missing: ", "and 8 more", "1 unexpected: transformer/r_w_bias_too"):
        assert text in error.what
    assert "transformer/layer_2/ff/LayerNorm/beta is (4, 4), not (16,)" in error.what


def test_integers_are_no_weights(tmp_path):
    name = f"{BLOCK}/ff/LayerNorm/gamma"

    def change(tensors):
        tensors[name] = np.ones(16, np.int32)

    assert "int32" in refused(tmp_path, change).differences["misshapen"][0]


def test_settings_are_checked_first():
    with pytest.raises(ValueError, match="Received: memory_len"):
        load_official_tensorflow("nowhere", memory_len=3)
    with pytest.raises(ValueError, match="clamp_length"):
        load_official_tensorflow("nowhere", clamp_length=-1)
    with pytest.raises(ValueError, match="position_encoding"):
        load_official_tensorflow("nowhere", position_encoding="sinusoidal")


def test_memory_length_is_needed_where_nothing_tells_it(tmp_path):
    prefix = save(tmp_path, official_tensors(random_model(family_config("enwik8"))))
    with pytest.raises(ValueError, match="`memory_length` must be given"):
        load_official_tensorflow(prefix)


def test_published_sizes_bring_their_settings():
    from txl_tf.convert.model_sizes import config_from

    sizes = {
        "vocabulary_size": 267735,
        "num_layers": 18,
        "hidden_dim": 1024,
        "num_heads": 16,
        "head_dim": 64,
        "intermediate_dim": 4096,
        "cutoffs": (20000, 40000, 200000),
    }
    config = config_from(sizes, {}, {"memory_length": 640}, "here")
    assert (config.segment_length, config.memory_length) == (128, 640)
    assert (config.clamp_length, config.same_length, config.dropout) == (1000, True, 0.2)


def test_a_checkpoint_that_is_not_there_or_not_whole(tmp_path):
    with pytest.raises(InputMissingError):
        load_official_tensorflow(tmp_path / "model.ckpt-0", memory_length=8)
    prefix = save(tmp_path, official_tensors(random_model(family_config("enwik8"))))
    data = next(tmp_path.glob("*.data*"))
    data.write_bytes(data.read_bytes()[:-500])
    with pytest.raises(DataDamagedError):
        load_official_tensorflow(prefix, memory_length=8)
    (tmp_path / "model.ckpt-0.index").write_bytes(b"nothing of the kind")
    with pytest.raises(DataDamagedError):
        load_official_tensorflow(prefix, memory_length=8)
