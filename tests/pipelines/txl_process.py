"""Runs `txl` as a user does: in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Sequence

TIMEOUT_SECONDS = 900


def command(*arguments: str) -> list[str]:
    """The command line of a job."""
    return [sys.executable, "-m", "pipelines.command_line", *map(str, arguments)]


def environment() -> dict[str, str]:
    """The environment of the process, without the test process's own settings."""
    return {**os.environ, "PYTHONWARNINGS": "ignore"}


def run_txl(*arguments: str, cwd: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a job to its end."""
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        cwd=cwd,
        env=environment(),
        check=False,
    )


def error_lines(finished: subprocess.CompletedProcess[str]) -> Sequence[str]:
    """What the job said when it failed."""
    return finished.stderr.strip().splitlines()
