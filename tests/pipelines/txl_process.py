"""Runs `txl` as a user does: in a process of its own."""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from tests.pipelines.fork_server import shared_server

TIMEOUT_SECONDS = 900


def command(*arguments: object) -> list[str]:
    """The command line of a job."""
    return [sys.executable, "-m", "pipelines.command_line", *map(str, arguments)]


def parsed(job: ModuleType, *words: object) -> argparse.Namespace:
    """The arguments of a job, as its parser reads them."""
    parser = argparse.ArgumentParser()
    job.add_arguments(parser)
    return parser.parse_args(list(map(str, words)))


def environment() -> dict[str, str]:
    """The environment of a new process, without the test process's own settings."""
    return {**os.environ, "PYTHONWARNINGS": "ignore"}


def run_txl(
    *arguments: object, code: int = 0, says: str = "", cwd: str | Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a job to its end, in a process that has imported already what jobs import.

    Fails unless it ends with the exit code `code` and the text `says` on its standard error.
    """
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        run = shared_server().start(*arguments, output=output, errors=errors, cwd=cwd)
        exit_code = run.wait(TIMEOUT_SECONDS)
        finished = subprocess.CompletedProcess(
            arguments, exit_code, output.read_text(), errors.read_text()
        )
    check_end(exit_code, finished.stderr, code, says)
    return finished


def run_new_txl(
    *arguments: object, code: int = 0, says: str = "", cwd: str | Path | None = None
) -> subprocess.CompletedProcess[str]:
    """The same in a new process.

    For tests of what such a process imports, reads from its environment while it
    does, or takes in time.
    """
    finished = subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        cwd=cwd,
        env=environment(),
        check=False,
    )
    check_end(finished.returncode, finished.stderr, code, says)
    return finished


def check_end(exit_code: int, errors: str, code: int, says: str) -> None:
    """Fails unless a job has ended as it should; an error takes three lines at most."""
    assert exit_code == code, errors
    assert says in errors
    _, _, message = errors.rpartition("txl: ")
    assert code == 0 or len(message.splitlines()) <= 3, errors
