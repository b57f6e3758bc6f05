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


def test_an_output_that_exists_or_cannot_be_written_leaves_the_folder_alone(tmp_path, monkeypatch):
    pytest.importorskip("safetensors")
    (tmp_path / "model").mkdir()
    with pytest.raises(OutputExistsError):
        save_hugging_face(Golden("hf_char").load(), tmp_path / "model")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(UsageError, match="needs safetensors, which is not installed"):
        save_hugging_face(Golden("hf_char").load(), tmp_path / "new")
    assert list(tmp_path.rglob("*")) == [tmp_path / "model"]


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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("changes", [{}, {"pre_norm": True, "tie_weights": False}])
@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_computes_the_same_and_its_own_folder_is_read(family, changes, tmp_path):
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
