"""Models that are read back from an export: weights, tokenizer, damage."""

import json
import shutil

import numpy as np
import pytest

import txl_tf
from tests.causal_lm.test_causal_lm import TOKENIZER
from tests.small_models import with_drawn_weights
from tests.toy_batches import toy_experiment
from txl_tf.causal_lm.exported_model import exported_version
from txl_tf.errors import DataDamagedError, InputMissingError, MismatchError
from txl_tf.export import ExportOptions, export_saved_model
from txl_tf.models import create_model


@pytest.fixture(scope="module")
def model():
    config = toy_experiment().model.replace(
        vocabulary_size=27, hidden_dim=64, num_layers=2, intermediate_dim=128
    )
    return with_drawn_weights(create_model(config, dtype="float32"), scale=0.3)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """All versions; the newest has weights in int8."""
    folder = tmp_path_factory.mktemp("export")
    card = {"model": model.config.to_dict()}
    options = ExportOptions(weights="int8")
    export_saved_model(model, folder / "2", card, tokenizer=TOKENIZER, options=options)
    (folder / "1").mkdir()
    return folder


@pytest.mark.slow
def test_the_newest_version_is_taken_and_fewer_bits_are_read(model, folder):
    assert exported_version(str(folder)) == str(folder / "2")
    lm = txl_tf.load(folder)
    differences = [
        np.abs(variable.numpy() - expected.numpy()).max()
        for variable, expected in zip(lm.model.weights, model.weights, strict=True)
    ]
    # Half a step of 127 of the largest number, and exact where the matrix is small.
    assert 0.0 < max(differences) < 0.3 * 5 / 127
    assert min(differences) == 0.0
    assert lm.tokenizer.fingerprint == TOKENIZER.fingerprint
    assert lm.generate("a fox", max_tokens=4).startswith("a fox")


def test_damage_and_other_models_are_refused(folder, tmp_path):
    copy = tmp_path / "1"
    shutil.copytree(folder / "2", copy)
    data = next((copy / "variables").glob("*.data*"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    with pytest.raises(DataDamagedError):
        txl_tf.load(copy)
    shutil.rmtree(copy)
    with pytest.raises(InputMissingError):
        txl_tf.load(tmp_path)


@pytest.mark.parametrize("change", [{"num_layers": 1}, {"num_layers": 9}, {"intermediate_dim": 5}])
def test_a_card_of_another_model_is_refused(folder, tmp_path, change):
    copy = tmp_path / "1"
    shutil.copytree(folder / "2", copy)
    path = copy / "assets.extra" / "model_card.json"
    card = json.loads(path.read_text())
    card["model"] |= change
    path.write_text(json.dumps(card))
    sums = (copy / "SHA256SUMS").read_text().splitlines()
    from txl_tf.storage.files import file_sha256

    name = "assets.extra/model_card.json"
    lines = [f"{file_sha256(str(path))}  {name}" if line.endswith(name) else line for line in sums]
    (copy / "SHA256SUMS").write_text("\n".join(lines) + "\n")
    with pytest.raises(MismatchError):
        txl_tf.load(copy)
