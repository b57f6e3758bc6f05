"""State dicts of the three PyTorch implementations."""

from fractions import Fraction

import numpy as np
import pytest

from tests.convert.goldens import FOLDER, HUGGING_FACE, Golden, save
from tests.convert.models import PYTORCH_FAMILIES, assert_same_weights, family_config, random_model
from tests.small_models import arrays_of
from txl_tf.convert import (
    load_hugging_face,
    load_nvidia_pytorch,
    load_official_pytorch,
    pytorch_systems as systems,
)
from txl_tf.convert.hugging_face_folder import hugging_face_tensors
from txl_tf.errors import DataDamagedError, InputMissingError, MismatchError

LOADERS = {
    "hugging_face": (systems.HUGGING_FACE, load_hugging_face),
    "official": (systems.OFFICIAL_PYTORCH, load_official_pytorch),
    "nvidia": (systems.NVIDIA_PYTORCH, load_nvidia_pytorch),
}
FLIPPED = ("crit.cluster_weight", "crit.cluster_bias")


def state_dict(model, system):
    weights = arrays_of(model)
    return {e.name: e.to_theirs(weights) for e in systems.pytorch_table(model.config, system)}


def official_names(tensors):
    """Returns a Hugging Face state dict with the names and the order of the official code."""
    return {
        name.removeprefix("transformer."): array[::-1] if name in FLIPPED else array
        for name, array in tensors.items()
    }


def nvidia_names(tensors):
    """Returns an official state dict with the names of NVIDIA's code."""
    renamed = {}
    for name, array in tensors.items():
        if name.startswith("crit.out_layers."):
            index, kind = name.removeprefix("crit.out_layers.").split(".")
            lists = {"weight": "out_layers_weights", "bias": "out_layers_biases"}
            renamed[f"crit.{lists[kind]}.{index}"] = array
        elif name.startswith("crit.out_projs.") and not name.endswith(".0"):
            renamed[name.replace("out_projs", "shared_out_projs")] = array
        else:
            renamed[name] = array
    first = "word_emb.emb_projs.0"
    if first in tensors:
        renamed["crit.shared_out_projs.0"] = tensors[first]
    return renamed


@pytest.mark.parametrize("name", HUGGING_FACE)
@pytest.mark.parametrize("is_nvidia", [False, True])
def test_other_names_and_the_other_order_are_the_same_model(name, is_nvidia, tmp_path):
    golden, load = Golden(name), load_nvidia_pytorch if is_nvidia else load_official_pytorch
    tensors = official_names(golden.state_dict)
    tensors = nvidia_names(tensors) if is_nvidia else tensors
    wrapped = {f"module.{name}": array for name, array in tensors.items()}
    for state in (tensors, wrapped):
        model = load(save(tmp_path, state), **golden.settings)
        assert_same_weights(model, golden.load())
    assert model.config.same_length_keys == ("memory_and_self" if is_nvidia else "memory")
    assert max(golden.differences(model).values()) <= 2e-5


@pytest.mark.parametrize(
    ("system", "family"),
    [*(("official", each) for each in PYTORCH_FAMILIES), *((s, "wt103_large") for s in LOADERS)],
)
def test_every_family_and_every_system(system, family, tmp_path):
    system, load = LOADERS[system]
    expected = random_model(family_config(family, layer_norm_epsilon=1e-5))
    path = save(tmp_path, state_dict(expected, system))
    model = load(path, memory_length=8, segment_length=8, cutoffs=expected.config.cutoffs)
    assert model.config == expected.config.replace(same_length_keys=system.same_length_keys)
    assert_same_weights(model, expected)


@pytest.mark.parametrize("system", LOADERS)
def test_separate_tables_and_projections_are_recognised(system, tmp_path):
    system, load = LOADERS[system]
    separate = {"tie_weights": False, "share_tail_projections": False}
    expected = random_model(family_config("wt103_large", **separate))
    model = load(save(tmp_path, state_dict(expected, system)), memory_length=8)
    assert model.config == model.config.replace(**separate)
    assert_same_weights(model, expected)


def test_copies_may_be_left_out_and_must_not_differ(tmp_path):
    golden = Golden("hf_adaptive_div4")
    tensors = golden.state_dict
    copies = [f"crit.out_layers.{index}.weight" for index in range(4)]
    copies += [f"crit.out_projs.{index}" for index in (1, 2, 3)]
    fewer = {name: array for name, array in tensors.items() if name not in copies}
    assert_same_weights(load_hugging_face(save(tmp_path, fewer, golden.config)), golden.load())
    tensors["crit.out_layers.2.weight"] = tensors["crit.out_layers.2.weight"] + 1.0
    with pytest.raises(MismatchError) as error:
        load_hugging_face(save(tmp_path, tensors, golden.config))
    assert error.value.differences == {"unequal": ["crit.out_layers.2.weight"]}


def test_numbers_that_are_not_finite_are_refused_by_name(tmp_path):
    golden = Golden("hf_char")
    tensors, name = golden.state_dict, "transformer.layers.1.dec_attn.qkv_net.weight"
    tensors[name] = np.full_like(tensors[name], np.nan)
    with pytest.raises(DataDamagedError) as error:
        load_hugging_face(save(tmp_path, tensors, golden.config))
    assert error.value.differences == {"not finite": [name]}


def test_cutoffs_within_one_table_are_asked_for(tmp_path):
    expected = random_model(family_config("wt103_base"))
    path = save(tmp_path, state_dict(expected, systems.OFFICIAL_PYTORCH))
    with pytest.raises(ValueError, match="`cutoffs` must have 2 entries"):
        load_official_pytorch(path, memory_length=8)
    with pytest.raises(MismatchError, match="must have 2 entries for this checkpoint, not 1"):
        load_official_pytorch(path, memory_length=8, cutoffs=(10,))


@pytest.mark.parametrize(
    "change",
    [
        {"n_layer": 4},
        {"n_head": "4"},
        {"attn_type": 2},
        {"dropout": 2.0},
        {"untie_r": False},
        {"cutoffs": [5]},
    ],
)
def test_a_configuration_of_another_model_is_refused(change, tmp_path):
    golden = Golden("hf_char")
    path = save(tmp_path, golden.state_dict, {**golden.config, **change})
    with pytest.raises(MismatchError):
        load_hugging_face(path)


def test_settings_come_before_the_configuration_and_their_origin_is_told(tmp_path):
    golden, origins = Golden("hf_char"), {}
    theirs = {**golden.config, "clamp_len": 5, "same_length": True, "id2label": {}}
    path = save(tmp_path, golden.state_dict, theirs)
    config = load_hugging_face(path, memory_length=4, origins=origins).config
    assert (config.clamp_length, config.same_length) == (5, True)
    assert (config.memory_length, config.same_length_keys) == (4, "memory")
    assert origins["num_layers"] == "found in the tensors"
    assert origins["clamp_length"] == "found in config.json"
    assert origins["memory_length"] == "given"
    assert origins["variational_dropout"] == "assumed: the default"


def test_saved_tensors_equal_the_loaded_ones():
    for name in HUGGING_FACE:
        golden = Golden(name)
        tensors, expected = hugging_face_tensors(golden.load()), golden.state_dict
        assert tensors.keys() == expected.keys()
        for key, array in expected.items():
            if key.endswith("inv_freq"):
                np.testing.assert_allclose(tensors[key], array, rtol=1e-6)
            else:
                np.testing.assert_array_equal(tensors[key], array, err_msg=key)


def test_folders_without_one_whole_model_are_refused(tmp_path):
    for folder in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(InputMissingError):
            load_hugging_face(folder)
    content = (FOLDER / "hf_char.npz").read_bytes()
    for damage in (content[:5000], b"", content[:90_000] + b"x" * 500 + content[90_500:]):
        (tmp_path / "model.npz").write_bytes(damage)
        with pytest.raises(DataDamagedError):
            load_hugging_face(tmp_path)
    (tmp_path / "other.npz").write_bytes(content)
    with pytest.raises(MismatchError):
        load_hugging_face(tmp_path)


def test_torch_files_are_read_without_running_them(tmp_path):
    torch = pytest.importorskip("torch")
    golden, path = Golden("hf_char"), tmp_path / "checkpoint.pt"
    tensors = {name: torch.tensor(array.copy()) for name, array in golden.state_dict.items()}
    torch.save({"model": tensors, "epoch": 3}, path)
    assert_same_weights(load_hugging_face(path, **golden.settings), golden.load())
    torch.save({**tensors, "more": Fraction(1, 2)}, path)
    with pytest.raises(DataDamagedError, match="without running code"):
        load_hugging_face(path, **golden.settings)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(DataDamagedError):
        load_hugging_face(path, **golden.settings)


def test_a_body_without_head_and_weights_of_another_library_are_named(tmp_path):
    tensors = Golden("hf_adaptive_div4").state_dict
    body = {
        name.removeprefix("transformer."): array
        for name, array in tensors.items()
        if not name.startswith("crit.")
    }
    with pytest.raises(MismatchError, match="without its head"):
        load_hugging_face(save(tmp_path, body))
    other = {"transformer.h.0.attn.weight": np.zeros((2, 2), "float32"), "wte": np.zeros(2)}
    message = r"another implementation.*transformer\.word_emb\.emb_layers\.0\.weight.*wte"
    with pytest.raises(MismatchError, match=message):
        load_hugging_face(save(tmp_path, other))
