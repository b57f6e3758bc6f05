"""Checkpoints of all published families, and checkpoints that are not whole."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tests.convert.models import FAMILIES, assert_same_weights, family_config, random_model
from tests.small_models import arrays_of
from txl_tf.convert import load_official_tensorflow
from txl_tf.convert.converted_config import merge_config
from txl_tf.convert.official_tensorflow import official_tensorflow_table
from txl_tf.convert.tensorflow_checkpoint import read_checkpoint
from txl_tf.errors import DataDamagedError, MismatchError

BLOCK = "transformer/layer_1"


def official_tensors(model):
    """Returns the tensors that the official code would save, including the optimizer's state."""
    weights = arrays_of(model)
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
    with pytest.raises(ValueError, match="`memory_length` must be given"):
        load_official_tensorflow(path)


def test_all_differences_are_named_and_counted(tmp_path):
    tensors = official_tensors(random_model(family_config("wt103_large")))
    for name in [name for name in tensors if name.startswith(f"{BLOCK}/")]:
        del tensors[name]
    tensors["transformer/r_w_bias_too"] = np.zeros(3, np.float32)
    tensors["transformer/layer_0/ff/LayerNorm/gamma"] = np.ones(16, np.int32)
    tensors["transformer/layer_2/ff/LayerNorm/beta"] = np.zeros((4, 4), np.float32)
    with pytest.raises(MismatchError) as error:
        load_official_tensorflow(save(tmp_path, tensors), memory_length=8)
    assert str(tmp_path) in str(error.value).splitlines()[1]
    assert len(error.value.differences["missing"]) == 11
    for text in (
        "11 missing: ",
        "and 8 more",
        "1 unexpected: transformer/r_w_bias_too",
        "transformer/layer_0/ff/LayerNorm/gamma has type int32, not a float",
        "transformer/layer_2/ff/LayerNorm/beta has shape (4, 4), not (16,)",
    ):
        assert text in error.value.what


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory_len": 3}, "Received: memory_len"),
        ({"clamp_length": -1}, "clamp_length"),
        ({"position_encoding": "sinusoidal"}, "position_encoding"),
    ],
)
def test_settings_are_checked_first(settings, message):
    with pytest.raises(ValueError, match=message):
        load_official_tensorflow("nowhere", **settings)


def test_published_sizes_bring_their_settings():
    sizes = {
        "vocabulary_size": 267735,
        "num_layers": 18,
        "hidden_dim": 1024,
        "num_heads": 16,
        "head_dim": 64,
        "intermediate_dim": 4096,
        "cutoffs": (20000, 40000, 200000),
    }
    config = merge_config(sizes, {}, {"memory_length": 640}, {}, "here")
    assert (config.segment_length, config.memory_length) == (128, 640)
    assert (config.clamp_length, config.same_length, config.dropout) == (1000, True, 0.2)


NOTHING = re.compile("")
TENSORS = {
    "empty": tf.zeros([2, 0]),
    "half": tf.ones([3], tf.bfloat16),
    "many": tf.range(1000),
    "text": tf.constant(["", "b" * 200]),
    "whole": tf.constant(7, tf.int64),
}


def test_a_damaged_index_is_refused(tmp_path):
    prefix = save(tmp_path, TENSORS)
    path = tmp_path / f"{prefix.name}.index"
    content = path.read_bytes()
    np.testing.assert_array_equal(read_checkpoint(str(prefix), NOTHING)["many"], np.arange(1000))
    damages = [
        (b"", "last bytes"),
        (content[:-1], "last bytes"),
        (content[:40], "last bytes"),
        # Without its beginning, the table is shorter than its footer says.
        (content[len(content) // 2 :], "after the end of the file"),
        # The checksum of a block, which TensorFlow compares.
        (content[:4] + bytes([content[4] ^ 1]) + content[5:], "is damaged"),
    ]
    for damage, message in damages:
        path.write_bytes(damage)
        with pytest.raises(DataDamagedError, match=message):
            read_checkpoint(str(prefix), NOTHING)


def test_data_that_are_missing_cut_or_no_file_are_refused(tmp_path):
    prefix = save(tmp_path, TENSORS)
    data = tmp_path / f"{prefix.name}.data-00000-of-00001"
    for damage in (data.read_bytes()[:1000], b""):
        data.write_bytes(damage)
        with pytest.raises(DataDamagedError, match=r"tensors need .* bytes, but its files have"):
            read_checkpoint(str(prefix), NOTHING)
    data.unlink()
    data.symlink_to("/dev/null")
    with pytest.raises(DataDamagedError, match="regular file"):
        read_checkpoint(str(prefix), NOTHING)
