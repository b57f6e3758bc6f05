"""A small text, prepared and trained once for all tests of the jobs."""

import json
import shutil

import pytest

from tests.pipelines.small_experiments import MODEL
from tests.pipelines.txl_process import run_txl

EXPERIMENT = {
    "model": MODEL,
    "training": {
        "global_batch_size": 4,
        "num_steps": 40,
        "steps_per_loop": 5,
        "checkpoint_every_steps": 10,
        "evaluate_every_steps": 20,
        "jit_compile": False,
    },
    "optimizer": {"learning_rate": 3e-3, "warmup_steps": 5},
    "evaluation": {"batch_size": 4},
}


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "counting.txt"
    lines = [
        f"{number} and {number * 7 % 101} make {number + number * 7 % 101}\n"
        for number in range(900)
    ]
    path.write_text("".join(lines))
    return path


@pytest.fixture(scope="session")
def data_folder(text_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared") / "data"
    finished = run_txl("prepare", "--text", text_file, "--tokenizer", "bytes", "--out", folder)
    assert finished.returncode == 0, finished.stderr
    return folder


@pytest.fixture(scope="session")
def config_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "tiny.json"
    path.write_text(json.dumps(EXPERIMENT))
    return path


@pytest.fixture(scope="session")
def trained(data_folder, config_file, tmp_path_factory):
    """A finished run: its folder and what the job printed."""
    workdir = tmp_path_factory.mktemp("trained") / "run"
    finished = run_txl(
        "train", "--config", config_file, "--data", data_folder, "--workdir", workdir
    )
    assert finished.returncode == 0, finished.stderr
    shutil.copytree(workdir, workdir.parent / "untouched")
    return workdir, finished


@pytest.fixture(scope="session")
def untouched(trained):
    """The folder of that run as training left it: other jobs add figures of their own."""
    return trained[0].parent / "untouched"
