"""The folder of a run says what it is, and takes no other run in."""

import json
import os

import numpy as np
import pytest

from pipelines.workdir import Workdir
from tests.pipelines.small_experiments import MODEL
from tests.pipelines.toy_run import digest_of
from tests.storage.places import KINDS, place
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.errors import (
    InputMissingError,
    MismatchError,
    OutputExistsError,
    StorageError,
)
from txl_tf.run import identity
from txl_tf.storage.locks import DirectoryLock
from txl_tf.training.checkpoints import CheckpointStore

VALUES = {
    "model": MODEL,
    "training": {"global_batch_size": 4, "num_steps": 40},
    "optimizer": {"learning_rate": 3e-3, "warmup_steps": 5},
    "evaluation": {"batch_size": 4},
}
DATA = {
    "fingerprint": "6b86b273",
    "corpus": "text_file",
    "tokenizer": "bytes",
    "tokenizer_sha256": "d4735e3a",
    "vocabulary_size": 256,
}
CHANGED_SETTINGS = {
    "model.num_layers": 3,
    "training.global_batch_size": 8,
    "training.dtype_policy": "mixed_bfloat16",
    "optimizer.learning_rate": 1e-3,
}
CHANGED_DATA = {"fingerprint": "4e074085", "corpus": "enwik8", "tokenizer_sha256": "0" * 8}


def experiment(changes=()):
    values = json.loads(json.dumps(VALUES))
    for name, value in dict(changes).items():
        section, field = name.split(".")
        values[section][field] = value
    return ExperimentConfig.from_dict(values)


@pytest.fixture(params=KINDS)
def folder(request, tmp_path):
    return place(request.param, tmp_path, "run")


def test_a_run_is_begun_once_and_read_again(folder):
    workdir = Workdir(folder)
    workdir.check_usable()
    assert not workdir.has_run()
    with pytest.raises(InputMissingError, match="no run"):
        workdir.describe()
    for _ in range(2):
        workdir.begin(experiment(), DATA)
        workdir.check_usable()
        assert workdir.has_run()
        described = workdir.describe()
        assert (described.experiment, described.data) == (experiment(), DATA)
    assert workdir.checkpoints == f"{folder}/checkpoints"
    assert workdir.ledger.startswith(f"{folder}/ledger")


def test_what_does_not_decide_a_step_may_change(folder):
    workdir = Workdir(folder)
    workdir.begin(experiment(), DATA)
    changed = experiment({"training.steps_per_loop": 7, "training.num_kept_checkpoints": 9})
    workdir.begin(changed, DATA)
    assert workdir.describe().experiment == changed


@pytest.fixture
def begun(tmp_path):
    """A run with a checkpoint."""
    workdir = Workdir(tmp_path / "run")
    workdir.begin(experiment(), DATA)
    store = CheckpointStore(workdir.checkpoints, identity(experiment(), DATA))
    store.save(3, {"model/kernel": np.ones((2, 2), "float32")})
    return workdir, tmp_path / "run"


def assert_both_refuse(begun, changed_experiment, changed_data, *words):
    """The description of the run and its checkpoints, each on its own; nothing is touched."""
    workdir, folder = begun
    before = digest_of(folder)
    store = CheckpointStore(workdir.checkpoints, identity(changed_experiment, changed_data))
    with DirectoryLock(workdir.folder):
        for action in (
            lambda: workdir.begin(changed_experiment, changed_data),
            store.load_latest,
            lambda: store.load(3),
        ):
            with pytest.raises(MismatchError) as raised:
                action()
            assert raised.value.exit_code == 78
            assert "1 differ:" in raised.value.what
            for word in words:
                assert word in raised.value.what
    assert digest_of(folder) == before


def test_every_setting_that_decides_a_step_and_the_data_are_held_to(begun):
    for name, value in CHANGED_SETTINGS.items():
        assert_both_refuse(begun, experiment({name: value}), DATA, name, repr(value))
    for name, value in CHANGED_DATA.items():
        assert_both_refuse(begun, experiment(), DATA | {name: value}, f"data.{name}")


def test_something_else_in_the_folder_is_refused(folder):
    workdir = Workdir(folder)
    with DirectoryLock(workdir.folder):
        workdir.check_usable()  # the lock is not something else
        workdir.begin(experiment(), DATA)
    other = Workdir(os.path.dirname(folder))
    with pytest.raises(OutputExistsError) as raised:
        other.check_usable()
    assert raised.value.exit_code == 73


def test_what_a_run_leaves_that_was_killed_before_it_had_begun_is_usable(tmp_path):
    (tmp_path / ".lock").write_text("{}")
    (tmp_path / ".run.json.tmp").write_text("{")
    workdir = Workdir(tmp_path)
    workdir.check_usable()
    with DirectoryLock(workdir.folder):
        workdir.begin(experiment(), DATA)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "run.json"]


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputExistsError):
        Workdir(tmp_path / "file").check_usable()
    with pytest.raises(InputMissingError):
        Workdir(tmp_path / "file").describe()
    with pytest.raises(StorageError):
        Workdir(tmp_path / "file" / "deep").begin(experiment(), DATA)


def test_a_description_of_another_format_is_no_damage(begun):
    workdir, folder = begun
    path = folder / "run.json"
    path.write_text(path.read_text().replace('"format_version": 1', '"format_version": 2'))
    with pytest.raises(MismatchError, match="format 2"):
        workdir.describe()
