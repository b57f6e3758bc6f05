"""Folders that Hugging Face's Transformers reads, and that it wrote."""

import sys

import numpy as np
import pytest

from tests.convert.goldens import NUM_SEGMENTS, Golden
from tests.convert.models import assert_same_weights, family_config, random_model
from txl_tf.convert import load_hugging_face, save_hugging_face
from txl_tf.errors import DataDamagedError, OutputExistsError, UsageError
from txl_tf.storage.untrusted_files import MAX_DEPTH

FAMILIES = ["enwik8", "wt103_base", "wt103_large", "narrow", "narrow_clusters"]


@pytest.mark.parametrize(
    ("family", "changes"),
    [*((family, {}) for family in FAMILIES), ("wt103_large", {"tie_weights": False})],
)
def test_there_and_back(family, changes, tmp_path):
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


def test_the_output_is_new_or_left_alone(tmp_path):
    pytest.importorskip("safetensors")
    model = Golden("hf_char").load()
    folder = save_hugging_face(model, tmp_path / "model")
    written = (folder / "config.json").read_bytes()
    with pytest.raises(OutputExistsError):
        save_hugging_face(model, folder)
    assert (folder / "config.json").read_bytes() == written
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_nothing_is_left_of_what_could_not_be_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(UsageError, match="needs safetensors, which is not installed"):
        save_hugging_face(Golden("hf_char").load(), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("family", "changes", "named"),
    [
        ("enwik8", {"same_length": True}, "same_length_keys"),
        ("enwik8", {"variational_dropout": True}, "variational_dropout"),
        ("enwik8", {"pre_norm": True, "residual_gate": "gru"}, "residual_gate"),
        ("lm1b", {}, "project_same_dim"),
    ],
)
def test_what_hugging_face_has_not_is_refused(family, changes, named, tmp_path):
    model = random_model(family_config(family, **changes))
    with pytest.raises(ValueError, match=named):
        save_hugging_face(model, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_damaged_folders(tmp_path):
    pytest.importorskip("safetensors")
    folder = save_hugging_face(Golden("hf_char").load(), tmp_path / "model")
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    longer_header = (int.from_bytes(content[:8], "little") + 1).to_bytes(8, "little") + content[8:]
    for damage in (content[:-10], content[:100], b"", longer_header):
        weights.write_bytes(damage)
        with pytest.raises(DataDamagedError):
            load_hugging_face(folder)
    weights.write_bytes(content)
    for text in ("[]", "{", "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)):
        (folder / "config.json").write_text(text)
        with pytest.raises(DataDamagedError):
            load_hugging_face(folder)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("changes", [{}, {"pre_norm": True, "tie_weights": False}])
@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_computes_the_same_and_what_it_wrote_is_read(family, changes, tmp_path):
    """Transformers 4.34.1 still has the model."""
    torch, transformers = map(pytest.importorskip, ("torch", "transformers"))
    if not hasattr(transformers, "TransfoXLLMHeadModel"):
        pytest.skip(f"transformers {transformers.__version__} has no Transformer-XL")
    options = {"same_length": True, "same_length_keys": "memory", "clamp_length": 5}
    config = family_config(family, **options, **changes)
    model = random_model(config, scale=0.3)
    folder = save_hugging_face(model, tmp_path / "model")
    theirs, information = transformers.TransfoXLLMHeadModel.from_pretrained(
        folder, output_loading_info=True
    )
    assert not any(information.values()), information
    theirs.eval()
    mems, memory = None, model.initial_memory(2, zeros_count=True)
    tokens = np.random.default_rng(5).integers(config.vocabulary_size, size=(NUM_SEGMENTS, 2, 6))
    for inputs in tokens:
        with torch.no_grad():
            outputs = theirs(input_ids=torch.tensor(inputs), mems=mems)
        mems = outputs.mems
        log_probs, memory = model.log_probs(inputs, memory)
        assert np.abs(outputs.prediction_scores.numpy() - log_probs.numpy()).max() <= 2e-5
    for is_safe, name in ((True, "safetensors"), (False, "torch")):
        theirs.save_pretrained(tmp_path / name, safe_serialization=is_safe)
        loaded = load_hugging_face(tmp_path / name)
        assert loaded.config == config
        assert_same_weights(loaded, model)
