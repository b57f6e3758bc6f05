"""Bad input: the right exit code, at most three lines, nothing overwritten."""

import hashlib
import time
from pathlib import Path

import pytest

from tests.pipelines.txl_process import error_lines, run_new_txl, run_txl


def digest(folder: Path) -> dict[str, str]:
    """What is in a folder, file by file."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def assert_refused(finished, exit_code: int, *words: str) -> None:
    lines = error_lines(finished)
    assert finished.returncode == exit_code, finished.stderr
    assert 1 <= len(lines) <= 3, finished.stderr
    for word in words:
        assert word in finished.stderr


TRAIN = ("train", "--data", "d", "--workdir", "w")


def test_without_a_job_the_help_is_printed():
    finished = run_txl()
    assert finished.returncode == 0
    assert finished.stdout.startswith("usage: txl") and "train a model" in finished.stdout


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["prepare", "--txet", "a", "--out", "b"], "--text"),
        (["prepare", "--text", "a"], "--out"),
        (["train", "--data", "d"], "--workdir"),
        ([*TRAIN, "--config", "quickstart", "--set", "model.depth=3"], "model.depth"),
        (["quickstart", "--set", "training.num_steps=many"], "num_steps"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments, word, tmp_path):
    # Some begin a process, of which three seconds would be TensorFlow's import.
    run = run_new_txl if word in ("--text", "model.depth") else run_txl
    begin = time.monotonic()
    finished = run(*arguments, cwd=tmp_path)
    assert_refused(finished, 2, word)
    assert time.monotonic() - begin < 10
    assert list(tmp_path.iterdir()) == []


def test_folder_of_something_else_is_no_workdir(data_folder, config_file, tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    before = digest(tmp_path)
    finished = run_txl(
        "train", "--config", config_file, "--data", data_folder, "--workdir", tmp_path
    )
    assert_refused(finished, 73, str(tmp_path))
    assert digest(tmp_path) == before


@pytest.mark.slow
def test_text_shorter_than_one_batch_is_65(tmp_path, config_file):
    short = tmp_path / "short.txt"
    short.write_text("line of text\n" * 4)
    data = tmp_path / "data"
    prepared = run_txl(
        "prepare", "--text", short, "--out", data, "--valid-fraction", "0", "--test-fraction", "0"
    )
    assert prepared.returncode == 0, prepared.stderr
    workdir = tmp_path / "run"
    finished = run_txl("train", "--config", config_file, "--data", data, "--workdir", workdir)
    assert_refused(finished, 65, "52", "65")
    assert not (workdir / "checkpoints").exists()


def test_other_vocabulary_is_78(data_folder, config_file, tmp_path):
    finished = run_txl(
        *("train", "--config", config_file, "--data", data_folder),
        *("--workdir", tmp_path / "run", "--set", "model.vocabulary_size=300"),
    )
    assert_refused(finished, 78, "256", "300")


def test_other_settings_in_the_same_workdir_are_78(trained, data_folder, config_file):
    workdir, _ = trained
    before = digest(workdir)
    finished = run_txl(
        *("train", "--config", config_file, "--data", data_folder),
        *("--workdir", workdir, "--set", "optimizer.learning_rate=1.0"),
    )
    assert_refused(finished, 78, "optimizer.learning_rate")
    assert digest(workdir) == before
