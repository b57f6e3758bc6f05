"""`txl_tf.load_model`: runs, converted models, and folders that are neither or are damaged."""

import json
import shutil

import numpy as np
import pytest

import txl_tf
from pipelines.workdir import Workdir
from tests.pipelines.txl_process import error_lines, run_txl
from tests.toy_batches import toy_experiment
from txl_tf.causal_lm.model_folder import write_model_folder
from txl_tf.errors import DataDamagedError, InputMissingError, MismatchError, UsageError
from txl_tf.models import create_model
from txl_tf.run_description import identity
from txl_tf.run_folder import describe, kind, locate
from txl_tf.training.checkpoint_store import CheckpointStore

STEPS = (2, 4, 6)
BEST = 4


def model_of_step(step):
    """A model whose weights tell the step, in all of its variables."""
    model = create_model(toy_experiment().model, dtype="float32")
    for index, variable in enumerate(model.weights):
        drawn = np.random.default_rng([step, index]).normal(size=variable.shape)
        variable.assign(drawn.astype("float32"))
    return model


def arrays_of(step, prefix="model/"):
    return {prefix + variable.path: variable.numpy() for variable in model_of_step(step).weights}


def begin(folder):
    experiment = toy_experiment()
    data = {
        "fingerprint": "f" * 64,
        "corpus": "toy",
        "tokenizer": "bytes",
        "tokenizer_sha256": "a" * 64,
        "vocabulary_size": experiment.model.vocabulary_size,
    }
    workdir = Workdir(folder)
    workdir.begin(experiment, data)
    return CheckpointStore(workdir.checkpoints, identity(experiment, data))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    store = begin(folder)
    for step in STEPS:
        store.save(step, arrays_of(step))
    store.keep_best(BEST)
    return folder


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted") / "model"
    write_model_folder(model_of_step(1), str(folder))
    return folder


@pytest.fixture(params=["run", "converted"])
def copy(request, tmp_path):
    """A folder of each kind, to be damaged."""
    return shutil.copytree(request.getfixturevalue(request.param), tmp_path / "copy")


def assert_is_of_step(model, step):
    expected = model_of_step(step).weights
    assert [variable.path for variable in model.weights] == [each.path for each in expected]
    for variable, each in zip(model.weights, expected, strict=True):
        np.testing.assert_array_equal(variable.numpy(), each.numpy(), err_msg=each.path)


@pytest.mark.parametrize(
    ("step", "found"), [(None, BEST), ("best", BEST), ("newest", STEPS[-1]), (2, 2)]
)
def test_a_checkpoint_of_a_run(run, step, found):
    assert kind(str(run)) == "run"
    assert_is_of_step(txl_tf.load_model(run, step), found)


def test_a_converted_model(converted):
    assert kind(str(converted)) == "converted"
    model = txl_tf.load_model(converted)
    assert model.config == toy_experiment().model
    assert_is_of_step(model, 1)


def test_averages_where_the_run_has_them(tmp_path):
    arrays = arrays_of(2) | arrays_of(3, "average/") | {"average/num_steps": np.int64(1)}
    begin(tmp_path).save(2, arrays)
    assert_is_of_step(txl_tf.load_model(tmp_path), 3)


@pytest.mark.parametrize(
    ("fixture", "step", "error", "said"),
    [
        ("run", 3, UsageError, "There are: 2, 4, 6."),
        ("converted", 1, UsageError, "has no steps"),
        ("converted", "best", UsageError, "has no steps"),
    ],
)
def test_a_step_that_is_not_there(fixture, step, error, said, request):
    with pytest.raises(error, match=said):
        txl_tf.load_model(request.getfixturevalue(fixture), step)


def test_folders_without_a_model(tmp_path):
    assert kind(str(tmp_path)) is None
    with pytest.raises(InputMissingError, match="neither a run nor a converted model"):
        txl_tf.load_model(tmp_path)
    store = begin(tmp_path)
    with pytest.raises(InputMissingError, match="There is no checkpoint yet"):
        txl_tf.load_model(tmp_path)
    store.save(2, arrays_of(2))
    with pytest.raises(InputMissingError, match="known to be the best"):
        txl_tf.load_model(tmp_path, "best")


def loaded(folder):
    """The checkpoint that is loaded by default."""
    best = folder / "checkpoints" / f"step-{BEST:08d}"
    return best if best.exists() else next((folder / "checkpoints").glob("step-*"))


def flip_a_weight(folder):
    data = next(loaded(folder).rglob("*.data*"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)


def remove_the_weights(folder):
    next(loaded(folder).rglob("*.data*")).unlink()


def change_the_manifest(folder):
    path = next(loaded(folder).glob("*.json"))
    path.write_bytes(path.read_bytes().replace(b'"model/', b'"modem/', 1))


def cut_the_description(folder):
    path = folder / ("run.json" if kind(str(folder)) == "run" else "config.json")
    path.write_bytes(path.read_bytes()[:-9])


def change_the_model(folder):
    path = folder / ("run.json" if kind(str(folder)) == "run" else "config.json")
    values = json.loads(path.read_text())
    model = values["experiment"]["model"] if "experiment" in values else values
    model["memory_length"] += 1
    path.write_text(json.dumps(values))


DAMAGE = {
    flip_a_weight: DataDamagedError,
    remove_the_weights: DataDamagedError,
    change_the_manifest: DataDamagedError,
    cut_the_description: DataDamagedError,
    change_the_model: MismatchError,
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_damage_is_found_before_a_model_is_built(damage, copy, monkeypatch):
    damage(copy)
    monkeypatch.setattr(txl_tf.TransformerXL, "__init__", None)
    with pytest.raises(DAMAGE[damage]):
        txl_tf.load_model(copy)


def test_the_best_checkpoint_is_gone(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    shutil.rmtree(copy / "checkpoints" / f"step-{BEST:08d}")
    for step in ("best", None):
        with pytest.raises(DataDamagedError, match="the best checkpoint is missing"):
            txl_tf.load_model(copy, step)
    assert_is_of_step(txl_tf.load_model(copy, "newest"), STEPS[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", [flip_a_weight, change_the_model], ids=lambda damage: damage.__name__
)
def test_the_jobs_say_the_same(damage, run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    damage(copy)
    with pytest.raises(DAMAGE[damage]) as caught:
        txl_tf.load_model(copy)
    arguments = ("convert", "--to", "hugging_face", "--workdir", copy)
    finished = run_txl(*arguments, "--out", tmp_path / "out")
    assert finished.returncode == caught.value.exit_code
    what, *others = error_lines(finished)
    said = [what.removeprefix("txl: "), *map(str.strip, others)]
    assert said == str(caught.value).splitlines()


def test_a_checkpoint_is_a_step_of_its_run_and_a_copy_is_a_model_of_its_own(run, tmp_path):
    checkpoint = run / "checkpoints" / f"step-{BEST:08d}"
    copied = shutil.copytree(checkpoint, tmp_path / "any name")
    assert locate(f"{checkpoint}/") == (str(run), BEST)
    assert locate(str(copied)) == (str(copied), None)
    for folder in (checkpoint, copied):
        model = txl_tf.load_model(folder)
        for variable, expected in zip(model.weights, model_of_step(BEST).weights, strict=True):
            np.testing.assert_array_equal(variable, expected, err_msg=variable.path)
        with pytest.raises(UsageError, match="A checkpoint is of one step"):
            txl_tf.load_model(folder, BEST)


def test_a_damaged_copy_of_a_checkpoint_is_refused(run, tmp_path):
    copied = shutil.copytree(run / "checkpoints" / f"step-{BEST:08d}", tmp_path / "copy")
    manifest = json.loads((copied / "manifest.json").read_text())
    manifest["identity"]["model"]["num_layers"] = 9
    (copied / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataDamagedError, match="own checksum"):
        txl_tf.load_model(copied)
    del manifest["identity"]["model"]
    (copied / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataDamagedError, match="does not tell the model"):
        describe(str(copied))
