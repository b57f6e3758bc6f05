"""Runs jobs in forked children with limits on time and memory, and says how they ended.

The process imports everything and starts no device, so that a fork of it is as good
as a new process and costs no imports.
"""

import contextlib
import dataclasses
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.pipelines.fork_server import import_before_forks

MODULES = (
    "pipelines.convert",
    "pipelines.evaluate",
    "pipelines.export",
    "pipelines.generate",
    "pipelines.prepare",
    "pipelines.run_verification",
    "pipelines.train",
    "pipelines.training_data",
    "pipelines.training_run",
    "pipelines.verify",
    "tensorflow_text",
    "txl_tf.data.count_verification",
    "txl_tf.export",
    "txl_tf.generation",
)
# Generous, because a machine may be busy: what computes too long is found by its CPU time.
_TIMEOUT_SECONDS = 180.0
_SPARE_BYTES = 6 << 30


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job ended: exit code, negative for a signal; what it said, and took."""

    exit_code: int
    stdout: str
    stderr: str
    cpu_seconds: float
    most_bytes: int
    timed_out: bool


def prepare() -> None:
    """Imports all that the jobs need; to be called once, before the first job."""
    import_before_forks(MODULES)


def run_job(
    arguments: Sequence[str], folder: Path, before: Callable[[], None] = lambda: None
) -> Outcome:
    """Runs one job to its end, or until its time is over.

    Args:
        arguments: those of `txl`.
        folder: path of a folder for what it prints.
        before: function to call in the child first. Whatever starts threads, as
            TensorFlow does, belongs there: a fork of several threads may wait for
            ever.
    """
    outputs = [folder / "stdout", folder / "stderr"]
    assert len(os.listdir("/proc/self/task")) == 1
    pid = os.fork()
    if pid == 0:
        _run(list(arguments), outputs, before)
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    timed_out = False
    while True:
        ended, status, usage = os.wait4(pid, 0 if timed_out else os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            timed_out = True
        time.sleep(0.005)
    stdout, stderr = (each.read_text(errors="replace") for each in outputs)
    return Outcome(
        os.waitstatus_to_exitcode(status),
        stdout,
        stderr,
        usage.ru_utime + usage.ru_stime,
        usage.ru_maxrss << 10,
        timed_out,
    )


def _run(arguments: list[str], outputs: list[Path], before: Callable[[], None]) -> None:
    """The child: runs the job and ends the process, whatever happens."""
    exit_code = 99
    try:
        before()
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        for stream, path in zip((1, 2), outputs, strict=True):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            os.dup2(os.open(path, flags, 0o644), stream)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + _SPARE_BYTES, used + _SPARE_BYTES))
        from pipelines.command_line import main

        try:
            exit_code = main(arguments)
        except SystemExit as error:
            exit_code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            sys.excepthook(*sys.exc_info())
            raise
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    except BaseException:
        with contextlib.suppress(BaseException):
            sys.stderr.flush()
    os._exit(exit_code)
