"""A small text, prepared and trained once for all tests of the jobs."""

import fcntl
import json
import os
import shutil

import pytest

from pipelines.command_line import main
from tests.pipelines.small_experiments import MODEL
from tests.pipelines.txl_process import check_end, run_txl

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


@pytest.fixture
def txl(capsys):
    """A function that runs a job in this process, with the checks of `run_txl`."""

    def run(*words, code=0, says=""):
        exit_code = main([str(word) for word in words])
        output = capsys.readouterr()
        check_end(exit_code, output.err, code, says)
        return output.out

    return run


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory):
    """A folder of all test processes, with a small text, its data set and a finished run.

    The first process that asks makes it, while the others wait.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            make_files(folder)
    return folder


def make_files(folder):
    folder.mkdir()
    text, data, config = folder / "counting.txt", folder / "data", folder / "tiny.json"
    lines = [f"{n} and {n * 7 % 101} make {n + n * 7 % 101}\n" for n in range(900)]
    text.write_text("".join(lines))
    config.write_text(json.dumps(EXPERIMENT))
    run_txl("prepare", "--text", text, "--tokenizer", "bytes", "--out", data)
    words = ("--config", config, "--data", data, "--workdir", folder / "run")
    finished = run_txl("train", *words)
    (folder / "output").write_text(finished.stdout + finished.stderr)


@pytest.fixture(scope="session")
def data_folder(shared_folder):
    return shared_folder / "data"


@pytest.fixture(scope="session")
def config_file(shared_folder):
    return shared_folder / "tiny.json"


@pytest.fixture(scope="session")
def untouched(shared_folder):
    """The folder of a finished run as training left it."""
    return shared_folder / "run"


@pytest.fixture(scope="session")
def trained(untouched, tmp_path_factory):
    """A copy of that run, to which other jobs add figures."""
    return shutil.copytree(untouched, tmp_path_factory.mktemp("trained") / "run")
