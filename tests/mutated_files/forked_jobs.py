"""Runs jobs in forked children with limits on time and memory, and says how they ended.

The process has called `import_before_forks` and starts no device, so that a fork of it is as good
as a new process and costs no imports.
"""

import dataclasses
import os
import resource
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.pipelines.fork_server import fork_job

# Generous, because a machine may be busy: what computes too long is found by its CPU time.
_TIMEOUT_SECONDS = 180.0
_SPARE_BYTES = 6 << 30
# A server runs until it is told to end: it is told when it has printed its last address.
_IS_SERVING = "gRPC: "


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job ended: exit code, negative for a signal; what it said, and took."""

    exit_code: int
    stdout: str
    stderr: str
    cpu_seconds: float
    most_bytes: int
    timed_out: bool


def run_job(
    arguments: Sequence[str], folder: Path, before: Callable[[], None] = lambda: None
) -> Outcome:
    """Runs one job to its end, or until its time is over; a server until it serves.

    Args:
        arguments: those of `txl`.
        folder: path of a folder for what it prints.
        before: function to call in the child first. Whatever starts threads, as
            TensorFlow does, belongs there: a fork of several threads may wait for
            ever.
    """
    outputs = [folder / "stdout", folder / "stderr"]
    for path in outputs:
        path.write_bytes(b"")

    def limited() -> None:
        before()
        os.setpgid(0, 0)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + _SPARE_BYTES, used + _SPARE_BYTES))

    pid = fork_job(arguments, outputs, limited)
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    timed_out = is_told = False
    while True:
        ended, status, usage = os.wait4(pid, 0 if timed_out else os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            timed_out = True
        if arguments[0] == "serve" and not is_told and _IS_SERVING in outputs[0].read_text():
            os.kill(pid, signal.SIGTERM)
            is_told = True
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
