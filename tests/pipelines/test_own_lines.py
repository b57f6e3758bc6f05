"""What a job writes to descriptor 2, in a new process: its own lines and nothing else."""

import contextlib
import json
import os
import pty
import re
import subprocess

import pytest

from tests.pipelines.conftest import EXPERIMENT
from tests.pipelines.txl_process import command, environment, run_new_txl
from tests.slow_case import slow_case

COLUMNS = 80
STEPS = ("training.num_steps=10", "training.jit_compile=true")
OWN = {
    "train": r"(step )?\d+/10 |(model|devices|step|length|rate|run|curves)  |valid$|goodput "
    r"|(bits/byte|bits/character|nats/token|perplexity|tokens|bytes|characters) |step 10, segment ",
    "evaluate": r"evaluating",
    "generate": r"$",
}
# Each takes seconds for TensorFlow alone.
JOBS = [slow_case(job) for job in OWN]
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
MOVE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


@pytest.fixture
def as_a_user(monkeypatch):
    """Without the setting that the tests use, which silences a part of the log already."""
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)


@pytest.fixture(scope="module")
def compiled_config(tmp_path_factory):
    """An experiment whose step XLA compiles, which it says in its log."""
    path = tmp_path_factory.mktemp("config") / "compiled.json"
    path.write_text(json.dumps(EXPERIMENT))
    return path


def shown_on_a_terminal(*arguments):
    """Runs a job on a terminal; returns its lines, which may overwrite one another."""
    parent, child = pty.openpty()
    variables = {**environment(), "TERM": "xterm", "COLUMNS": str(COLUMNS), "LINES": "24"}
    with subprocess.Popen(
        command(*arguments), stdout=subprocess.DEVNULL, stderr=child, env=variables
    ) as process:
        os.close(child)
        shown = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while block := os.read(parent, 1 << 16):
                shown += block
        os.close(parent)
        assert process.wait() == 0, shown.decode()
    lines = MOVE.sub("\n", COLOUR.sub("", shown.decode())).split("\n")
    return [line for each in lines if (line := each.strip())]


def arguments_of(job, trained, data_folder, config, workdir):
    overrides = [word for setting in STEPS for word in ("--set", setting)]
    run, _ = trained
    return {
        "train": ("--config", config, "--data", data_folder, "--workdir", workdir, *overrides),
        "evaluate": ("--workdir", run, "--data", data_folder),
        "generate": ("--workdir", run, "--prompt", "1 and", "--max-tokens", "5"),
    }[job]


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("job", JOBS)
def test_a_pipe_gets_own_lines_alone(job, trained, data_folder, compiled_config, tmp_path):
    arguments = arguments_of(job, trained, data_folder, compiled_config, tmp_path / "run")
    finished = run_new_txl(job, *arguments)
    assert finished.returncode == 0, finished.stderr
    lines = map(str.strip, finished.stderr.splitlines())
    assert [line for line in lines if not re.match(OWN[job], line)] == []


@pytest.mark.slow
@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("job", JOBS)
def test_a_terminal_gets_own_lines_alone(job, trained, data_folder, compiled_config, tmp_path):
    arguments = arguments_of(job, trained, data_folder, compiled_config, tmp_path / "run")
    lines = shown_on_a_terminal(job, *arguments)
    assert all(len(line) <= COLUMNS for line in lines if str(tmp_path) not in line)
    assert [line for line in lines if not re.match(OWN[job], line)] == []
