"""Folders that Hugging Face's Transformers reads, and that it wrote."""

import pytest

from tests.convert.goldens import Golden
from tests.convert.models import PYTORCH_FAMILIES, assert_same_weights, family_config, random_model
from txl_tf.convert import load_hugging_face, save_hugging_face
from txl_tf.errors import DataDamagedError
from txl_tf.storage.strict_json import MAX_DEPTH


@pytest.mark.parametrize(
    ("family", "changes"),
    [*((family, {}) for family in PYTORCH_FAMILIES), ("wt103_large", {"tie_weights": False})],
)
def test_a_model_survives_the_way_to_hugging_face_and_back(family, changes, tmp_path):
    pytest.importorskip("safetensors")
    config = family_config(
        family, same_length=True, same_length_keys="memory", clamp_length=5, **changes
    )
    model = random_model(config)
    folder = save_hugging_face(model, tmp_path / "model")
    files = sorted(folder.iterdir())
    assert [path.name for path in files] == ["config.json", "model.safetensors"]
    assert len({path.stat().st_mode for path in files}) == 1
    loaded = load_hugging_face(folder)
    assert loaded.config == config
    assert_same_weights(loaded, model)


@pytest.mark.parametrize(
    ("family", "changes", "named"),
    [
        ("enwik8", {"same_length": True}, "same_length_keys"),
        ("enwik8", {"variational_dropout": True}, "variational_dropout"),
        ("enwik8", {"pre_norm": True, "residual_gate": "gru"}, "residual_gate"),
        ("lm1b", {}, "project_same_dim"),
    ],
)
def test_models_that_hugging_face_lacks_are_refused(family, changes, named, tmp_path):
    model = random_model(family_config(family, **changes))
    with pytest.raises(ValueError, match=named):
        save_hugging_face(model, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_damaged_folders_are_refused(tmp_path):
    pytest.importorskip("safetensors")
    folder = save_hugging_face(Golden("hf_char").load(), tmp_path / "model")
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    longer_header = (int.from_bytes(content[:8], "little") + 1).to_bytes(8, "little") + content[8:]
    nested = b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1)
    for path, damages in (
        (weights, (content[:-10], content[:100], b"", longer_header)),
        (folder / "config.json", (b"[]", b"{", nested)),
    ):
        for damage in damages:
            path.write_bytes(damage)
            with pytest.raises(DataDamagedError):
                load_hugging_face(folder)
        weights.write_bytes(content)
