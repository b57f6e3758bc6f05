"""Runs of an ablation: worker processes side by side, results on disk."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from txl_tf.config.base import describe_differences
from txl_tf.distribution.preemption import PreemptionWatcher
from txl_tf.errors import DataDamagedError, JobError, MismatchError, PreemptedError
from txl_tf.evaluation.result import MeasuredLoss
from txl_tf.storage.files import first_line
from txl_tf.storage.local_files import open_for_writing
from txl_tf.storage.untrusted_files import read_json_object, storage_errors
from txl_tf.storage.writable_folder import WritableFolder

from .ablation_study import AblationRun, AttentionLength

_PREEMPTED = PreemptedError.exit_code
_POLL_SECONDS = 0.2
_LOG_FILE = "log.txt"


class AblationProcesses:
    """Worker processes that train and evaluate the runs of an ablation.

    A new process for every run gives all memory back. After a notice of
    preemption no further process is begun, and those that run are told to save
    and end. A run that fails does not keep the others from being run.

    Args:
        command: function of a run's name that returns the command line.
        folder: path of the study; the folder of a run gets a log.
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
        """Runs the named runs to their end, in this order.

        Yields:
            Tuple of the name of a run that has ended and its error, or `None`.

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
            remedy="All finished work is saved; run the same command to resume.",
        )

    def _error(self, name: str, exit_code: int) -> JobError | None:
        if exit_code == 0:
            return None
        log = self._folder / name / _LOG_FILE
        error = JobError(
            f"The run {name} failed with exit code {exit_code}: {_said(log)}",
            where=str(log),
            remedy="Repair that, then run the same command to resume.",
        )
        # A signal has no exit code of ours.
        error.exit_code = exit_code if exit_code > 0 else JobError.exit_code
        return error


def _said(log: Path) -> str:
    """Returns the error message that a failed process printed."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line.removeprefix("txl: ") for line in lines if line.startswith("txl: ")]
    return (errors or lines or ["it said nothing"])[-1].strip()[:300]


_FORMAT_VERSION = 1
_FILE = "result.json"
_REMEDY = "Remove the file; they are measured again from the trained weights."


@dataclasses.dataclass(frozen=True, kw_only=True)
class AblationResult:
    """Figures of one run of an ablation, as far as they are measured."""

    settings: dict[str, Any]
    """JSON values, see `AblationRun.settings`."""
    figures: dict[AttentionLength, MeasuredLoss] = dataclasses.field(default_factory=dict)
    """Loss at each attention length."""

    @classmethod
    def read(cls, folder: Path, run: AblationRun, data: dict[str, Any]) -> Self:
        """Reads the figures of a run; none where nothing has been measured.

        Args:
            folder: path of the study.
            run: `AblationRun`.
            data: dict that `data_identity` returned.

        Raises:
            MismatchError: If it was measured with other settings.
            DataDamagedError: If the file cannot be understood.
        """
        path = folder / run.name / _FILE
        # As JSON has them, which knows no tuples.
        settings = json.loads(json.dumps(run.settings(data)))
        try:
            with storage_errors("The figures of a run cannot be read", str(path)):
                values = _read(str(path))
            if values is None:
                return cls(settings=settings)
            if values.get("format_version") != _FORMAT_VERSION:
                raise ValueError(f"format version {ascii(values.get('format_version'))[:40]}")
            if not isinstance(values.get("settings"), dict):
                raise ValueError("`settings` is no object")
            result = cls(settings=values["settings"], figures=_figures(values.get("figures")))
        except ValueError as error:
            raise DataDamagedError(
                f"The figures of a run cannot be read: {first_line(error)}",
                where=str(path),
                remedy=_REMEDY,
            ) from error
        differences = describe_differences(result.settings, settings)
        if differences:
            raise MismatchError(
                f"The study was begun with other settings; {differences}",
                where=str(path),
                remedy="Give the study and data it was begun with, or choose a new --out.",
            )
        return result

    def missing(self, run: AblationRun) -> list[AttentionLength]:
        """Returns the lengths of a run that have not been measured."""
        return [length for length in run.attention_lengths() if length not in self.figures]

    def write(self, folder: Path, run: AblationRun, writable: WritableFolder | None = None) -> None:
        """Writes the file, which is the old or the new one at every moment.

        Args:
            folder: path of the study.
            run: `AblationRun`.
            writable: optional `WritableFolder` of the lock of the run's folder.
                Where the lock was lost, OutputExistsError is raised.
        """
        values = {
            "format_version": _FORMAT_VERSION,
            "settings": self.settings,
            "figures": [
                {
                    "attention_length": dataclasses.asdict(length),
                    "loss": dataclasses.asdict(loss),
                    # For whoever reads the file; they follow from the totals.
                    "nats_per_token": loss.nats_per_token,
                    "perplexity": loss.perplexity,
                }
                for length, loss in self.figures.items()
            ],
        }
        writable = writable or WritableFolder.at(folder / run.name)
        writable.write(_FILE, (json.dumps(values, indent=1) + "\n").encode())


def _read(path: str) -> dict[str, Any] | None:
    try:
        return read_json_object(path, remedy=_REMEDY)
    except FileNotFoundError:
        return None


def _figures(rows: Any) -> dict[AttentionLength, MeasuredLoss]:
    if not isinstance(rows, list):
        raise ValueError("`figures` is no list")
    figures = {}
    for row in rows:
        try:
            length = AttentionLength(**row["attention_length"])
            loss = MeasuredLoss(**row["loss"])
        except (LookupError, TypeError) as error:
            raise ValueError(f"a row of `figures` is none: {first_line(error)}") from error
        _check_row(length, loss)
        if (row.get("nats_per_token"), row.get("perplexity")) != (
            loss.nats_per_token,
            loss.perplexity,
        ):
            raise ValueError("a figure does not follow from its totals")
        figures[length] = loss
    return figures


def _check_row(length: AttentionLength, loss: MeasuredLoss) -> None:
    for name, value in dataclasses.asdict(length).items():
        is_flag = name in ("same_length", "is_training_length")
        is_valid = type(value) is bool if is_flag else type(value) is int and value >= 0
        if not is_valid and not (name == "stride" and value is None):
            raise ValueError(f"`attention_length.{name}` is {ascii(value)[:40]}")
    for name, value in dataclasses.asdict(loss).items():
        kinds = (int,) if name == "num_tokens" else (int, float)
        least = 0 if name in ("total_nats", "seconds") else 1
        if type(value) not in kinds or value < least:
            raise ValueError(f"`loss.{name}` is {ascii(value)[:40]}")
