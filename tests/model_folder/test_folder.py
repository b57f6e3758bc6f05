"""Folders with a model of every kind: one function opens them, and damage is found first."""

import json
import shutil

import numpy as np
import pytest

import txl_tf
from tests.small_models import toy_experiment, with_drawn_weights
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.errors import DataDamagedError, InputMissingError, MismatchError, UsageError
from txl_tf.export import ExportOptions, export_saved_model
from txl_tf.model_folder import (
    ModelDescription,
    Workdir,
    identify_folder,
    open_model,
    tokenizer_from,
    write_model_folder,
)
from txl_tf.models import create_model

STEPS = (2, 4, 6)
BEST = 4
EXPERIMENT = toy_experiment(model={"vocabulary_size": 256, "share_attention_biases": True})
DATA = {
    "fingerprint": "f" * 64,
    "corpus": "toy",
    "tokenizer": "bytes",
    "tokenizer_sha256": ByteTokenizer().fingerprint,
    "vocabulary_size": 256,
}


def model_of_step(step):
    """A model whose weights tell the step, in all of its variables."""
    model = create_model(EXPERIMENT.model, dtype="float32")
    for index, variable in enumerate(model.weights):
        drawn = np.random.default_rng([step, index]).normal(size=variable.shape)
        variable.assign(drawn.astype("float32"))
    return model


def arrays_of(step, prefix="model/"):
    return {prefix + variable.path: variable.numpy() for variable in model_of_step(step).weights}


def begin(folder):
    workdir = Workdir(folder)
    return workdir.begin(EXPERIMENT, DATA).checkpoints(workdir.folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One model in a folder of each kind."""
    folder = tmp_path_factory.mktemp("folders")
    store = begin(folder / "run")
    for step in STEPS:
        store.save(step, arrays_of(step))
    store.keep_best(BEST)
    checkpoint = folder / "run" / "checkpoints" / f"step-{BEST:08d}"
    shutil.copytree(checkpoint, folder / "copied")
    shutil.copy(folder / "run" / "config.json", folder / "copied")
    model = txl_tf.TransformerXL(EXPERIMENT.model, name="another_name")
    for variable, array in zip(model.weights, model_of_step(BEST).weights, strict=True):
        variable.assign(array)
    write_model_folder(model, folder / "converted", ByteTokenizer())
    description = ModelDescription.of_model(model, None, step=BEST)
    version = folder / "export" / "2"
    export_saved_model(model, version, tokenizer=ByteTokenizer(), description=description)
    (folder / "export" / "3").mkdir()  # not complete
    return {name: folder / name for name in KINDS} | {"checkpoint": checkpoint}


KINDS = {
    "run": "run",
    "checkpoint": "checkpoint",
    "copied": "model",
    "converted": "model",
    "export": "export",
}


def assert_is_of_step(model, step):
    expected = model_of_step(step).weights
    assert [variable.path for variable in model.weights] == [each.path for each in expected]
    for variable, each in zip(model.weights, expected, strict=True):
        np.testing.assert_array_equal(variable.numpy(), each.numpy(), err_msg=each.path)


@pytest.mark.parametrize("name", KINDS)
def test_a_folder_of_any_kind_is_opened_by_the_same_function(name, folders):
    source = open_model(f"{folders[name]}/")
    assert source.kind == KINDS[name]
    assert source.description.model == EXPERIMENT.model
    for tokenizer in (source.tokenizer(), tokenizer_from(folders[name])):
        assert tokenizer.fingerprint == ByteTokenizer().fingerprint
    step, _ = source.read_weights()
    assert step == (0 if name == "converted" else BEST)
    assert_is_of_step(txl_tf.load_model(folders[name]), BEST)
    lm = txl_tf.load(folders[name])
    assert (lm.step, lm.tokenizer.kind) == (step, "bytes")


def test_a_step_chooses_a_checkpoint_of_a_run_and_nothing_else(folders):
    for step, expected in (("best", BEST), ("newest", STEPS[-1]), (2, 2)):
        assert_is_of_step(txl_tf.load_model(folders["run"], step), expected)
    for name, step, message in (
        ("run", 3, "Choose one of: 2, 4, 6."),
        ("checkpoint", BEST, "no step can be chosen"),
        ("export", BEST, "no step can be chosen"),
    ):
        with pytest.raises(UsageError, match=message):
            txl_tf.load_model(folders[name], step)


def test_averages_where_the_run_has_them(tmp_path):
    arrays = arrays_of(2) | arrays_of(3, "average/") | {"average/num_steps": np.int64(1)}
    begin(tmp_path).save(2, arrays)
    assert_is_of_step(txl_tf.load_model(tmp_path), 3)


def test_settings_of_the_run_are_in_its_config(tmp_path):
    evaluation = EXPERIMENT.evaluation.replace(memory_length=3)
    changes = {"document_boundaries": "mask", "attention_kernel": "never", "jit_compile": False}
    training = EXPERIMENT.training.replace(**changes)
    Workdir(tmp_path).begin(EXPERIMENT.replace(evaluation=evaluation, training=training), DATA)
    (tmp_path / "run.json").unlink()
    source = open_model(tmp_path)
    assert source.run is None
    assert source.description.evaluation == evaluation.replace(attention_kernel="never")
    assert source.description.masks_documents and not source.description.may_compile


def test_folders_without_a_model(tmp_path, folders):
    assert identify_folder(tmp_path) == (None, str(tmp_path))
    for load in (txl_tf.load_model, tokenizer_from):
        with pytest.raises(InputMissingError, match="There is no model in this folder"):
            load(tmp_path)
    with pytest.raises(InputMissingError):
        txl_tf.load("no such folder")
    store = begin(tmp_path)
    with pytest.raises(InputMissingError, match="has no checkpoint yet"):
        txl_tf.load_model(tmp_path)
    store.save(2, arrays_of(2))
    with pytest.raises(InputMissingError, match="has no best checkpoint"):
        txl_tf.load_model(tmp_path, "best")
    copied = shutil.copytree(folders["checkpoint"], tmp_path / "copy")
    with pytest.raises(InputMissingError, match=r"their config\.json is missing"):
        txl_tf.load_model(copied)


def flip_a_weight(folder):
    data = max(folder.rglob("*.data*"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)


def description_of(folder):
    return next(path for name in ("run.json", "config.json") for path in folder.rglob(name))


def cut_the_description(folder):
    path = description_of(folder)
    path.write_bytes(path.read_bytes()[:-9])


def change_the_model(folder):
    path = description_of(folder)
    values = json.loads(path.read_text())
    values.get("experiment", values)["model"]["memory_length"] += 1
    path.write_text(json.dumps(values))


DAMAGE = (flip_a_weight, cut_the_description, change_the_model)


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", ["run", "converted", "export"])
def test_damage_is_found_before_a_model_is_built(name, damage, folders, tmp_path, monkeypatch):
    copy = shutil.copytree(folders[name], tmp_path / "copy")
    damage(copy)
    monkeypatch.setattr(txl_tf.TransformerXL, "__init__", None)
    # The checksums of an export are of its settings too.
    is_other = damage is change_the_model and name != "export"
    with pytest.raises(MismatchError if is_other else DataDamagedError):
        txl_tf.load_model(copy, "newest" if name == "run" else None)


def test_an_export_in_int8_is_opened_within_its_precision(tmp_path):
    config = EXPERIMENT.model.replace(hidden_dim=64, intermediate_dim=128)
    model = with_drawn_weights(create_model(config, dtype="float32"), scale=0.3)
    export_saved_model(model, tmp_path / "1", options=ExportOptions(weights="int8"))
    assert open_model(tmp_path).description.stored_as == "int8"
    pairs = zip(txl_tf.load_model(tmp_path).get_weights(), model.get_weights(), strict=True)
    differences = [np.abs(array - expected).max() for array, expected in pairs]
    # Half a step of 127 of the largest number, and exact where the matrix is small.
    assert 0.0 < max(differences) < 0.3 * 5 / 127
    assert min(differences) == 0.0
