"""Runs the cells of an ablation, each in a process of its own, some side by side."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from txl_tf.distribution.preemption_watcher import PreemptionWatcher
from txl_tf.errors import JobError, PreemptedError
from txl_tf.local_files import open_for_writing

_PREEMPTED = PreemptedError.exit_code
_POLL_SECONDS = 0.2
_LOG_FILE = "log.txt"


class CellProcesses:
    """Processes that train and evaluate cells.

    A new process for every cell gives all memory back. After a notice of
    preemption no further process is begun, and those that run are told to save
    and end. A cell that fails does not keep the others from being run.

    Args:
        command: function of a cell's name that returns the command line.
        folder: path of the study; the folder of a cell gets a log.
        num_jobs: int. Processes side by side.
        watcher: `PreemptionWatcher`, already watching.
    """

    def __init__(
        self,
        command: Callable[[str], Sequence[str]],
        folder: Path,
        num_jobs: int,
        watcher: PreemptionWatcher,
    ) -> None:
        self._command = command
        self._folder = folder
        self._num_jobs = num_jobs
        self._watcher = watcher
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        self._was_stopped = False

    def run(self, names: Sequence[str]) -> Iterator[tuple[str, JobError | None]]:
        """Runs cells to their end.

        Args:
            names: sequence of str. Names of the cells, in the order to begin.

        Yields:
            Tuple of the name of a cell that has ended and the error with which
            it did, or `None`.

        Raises:
            PreemptedError: If this process or one of the others is asked to
                stop; all of them have ended.
        """
        waiting = list(names)
        self._watcher.call_on_notice(self._stop_all)
        try:
            while waiting or self._running:
                while waiting and len(self._running) < self._num_jobs and not self._is_stopping():
                    self._start(waiting.pop(0))
                for name, exit_code in self._ended():
                    if exit_code == _PREEMPTED:
                        self._stop_all()
                    else:
                        yield name, self._error(name, exit_code)
                if self._is_stopping() and not self._running:
                    raise self._stopped()
                time.sleep(_POLL_SECONDS)
        finally:
            self._stop_all()
            for process in self._running.values():
                process.wait()

    def _start(self, name: str) -> None:
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        log_file = open_for_writing(str(folder / _LOG_FILE), appends=True)
        with os.fdopen(log_file, "ab") as log:
            process = subprocess.Popen(
                self._command(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(),
            )
        with self._lock:
            self._running[name] = process
        if self._is_stopping():
            process.terminate()

    def _environment(self) -> dict[str, str]:
        variables = dict(os.environ)
        # Wherever it is called from, the copy of the code that asks is the one that runs.
        variables["PYTHONPATH"] = os.pathsep.join(each for each in sys.path if each)
        if self._num_jobs > 1:
            # Otherwise each of them would take all cores.
            num_threads = max((os.cpu_count() or 1) // self._num_jobs, 1)
            variables.setdefault("TF_NUM_INTRAOP_THREADS", str(num_threads))
        return variables

    def _ended(self) -> list[tuple[str, int]]:
        codes = [(name, process.poll()) for name, process in self._running.items()]
        ended = [(name, code) for name, code in codes if code is not None]
        with self._lock:
            for name, _ in ended:
                del self._running[name]
        return ended

    def _is_stopping(self) -> bool:
        return self._watcher.requested is not None or self._was_stopped

    def _stop_all(self) -> None:
        """Asks all to save and end; also called in the watcher's thread."""
        self._was_stopped = True
        with self._lock:
            for process in self._running.values():
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()

    def _stopped(self) -> PreemptedError:
        reason = self._watcher.requested or "a process of the study was asked to stop"
        return PreemptedError(
            f"The study was stopped: {reason}.",
            where=str(self._folder),
            remedy="All that was done is saved; the same command goes on with it.",
        )

    def _error(self, name: str, exit_code: int) -> JobError | None:
        if exit_code == 0:
            return None
        log = self._folder / name / _LOG_FILE
        error = JobError(
            f"The cell {name} failed with exit code {exit_code}: {_said(log)}",
            where=str(log),
            remedy="Once that is mended, the same command goes on with it.",
        )
        # A signal has no exit code of ours.
        error.exit_code = exit_code if exit_code > 0 else JobError.exit_code
        return error


def _said(log: Path) -> str:
    """What a process said when it failed: its error, which has at most three lines."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line.removeprefix("txl: ") for line in lines if line.startswith("txl: ")]
    return (errors or lines or ["it said nothing"])[-1].strip()[:300]
