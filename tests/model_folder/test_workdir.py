"""The folder of a run describes the run, and refuses any other run."""

import os

import pytest

from tests.pipelines.small_experiments import MODEL, TOY_DATA
from tests.pipelines.toy_run import contents_of
from tests.storage.places import KINDS, place
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.errors import InputMissingError, MismatchError, OutputExistsError
from txl_tf.model_folder import Workdir
from txl_tf.storage.locks import locked_folder

VALUES = {
    "model": MODEL,
    "training": {"global_batch_size": 4, "num_steps": 40},
    "optimizer": {"learning_rate": 3e-3, "warmup_steps": 5},
}
EXPERIMENT = ExperimentConfig.from_dict(VALUES)
DATA = {**TOY_DATA, "vocabulary_size": MODEL["vocabulary_size"]}
CHANGED_SETTINGS = [
    "model.num_layers=3",
    "training.global_batch_size=8",
    'training.dtype_policy="mixed_bfloat16"',
    "optimizer.learning_rate=0.001",
]
CHANGED_DATA = {"fingerprint": "4e074085", "corpus": "enwik8", "tokenizer_sha256": "0" * 8}


@pytest.fixture(params=KINDS)
def folder(request, tmp_path):
    return place(request.param, tmp_path, "run")


def test_a_run_is_begun_once_and_read_again(folder):
    workdir = Workdir(folder)
    with pytest.raises(InputMissingError, match="no run"):
        workdir.describe()
    workdir.check_usable()
    # What does not decide a step may change.
    changes = ["training.steps_per_loop=7", "training.num_kept_checkpoints=9"]
    with locked_folder(workdir.folder):
        for experiment in (EXPERIMENT, EXPERIMENT, EXPERIMENT.with_overrides(changes)):
            workdir.check_usable()  # the lock is not something else
            workdir.begin(experiment, DATA)
            described = workdir.describe()
            assert (described.experiment, described.data) == (experiment, DATA)
    with pytest.raises(OutputExistsError):
        Workdir(os.path.dirname(folder)).check_usable()


def test_another_run_is_refused_and_the_difference_is_named(tmp_path):
    workdir = Workdir(tmp_path)
    workdir.begin(EXPERIMENT, DATA)
    before = contents_of(tmp_path)
    for setting in CHANGED_SETTINGS:
        with pytest.raises(MismatchError, match=f"1 setting differs: {setting.partition('=')[0]}"):
            workdir.begin(EXPERIMENT.with_overrides([setting]), DATA)
    for name, value in CHANGED_DATA.items():
        with pytest.raises(MismatchError, match=f"1 setting differs: data.{name}"):
            workdir.begin(EXPERIMENT, DATA | {name: value})
    assert contents_of(tmp_path) == before


def test_a_folder_of_a_run_killed_before_its_start_is_usable(tmp_path):
    (tmp_path / ".lock").write_text("{}")
    (tmp_path / ".run.json.tmp").write_text("{")
    workdir = Workdir(tmp_path)
    workdir.check_usable()
    with locked_folder(workdir.folder):
        workdir.begin(EXPERIMENT, DATA)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "run.json"]


def test_a_description_of_another_format_is_no_damage(tmp_path):
    Workdir(tmp_path).begin(EXPERIMENT, DATA)
    path = tmp_path / "run.json"
    path.write_text(path.read_text().replace('"format_version": 1', '"format_version": 2'))
    with pytest.raises(MismatchError, match="format 2"):
        Workdir(tmp_path).describe()


def test_a_second_trainer_is_refused_by_the_lock(tmp_path):
    workdir = Workdir(tmp_path)
    with locked_folder(workdir.folder):
        workdir.check_unlocked()  # no run yet
        workdir.begin(EXPERIMENT, DATA)
        with pytest.raises(OutputExistsError):
            workdir.check_unlocked()
    workdir.check_unlocked()
