"""Time of a run by cause, over all its starts, and its goodput."""

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from txl_tf.training.metrics import MetricsLines, MetricsLog
from txl_tf.training.step_report import LoopReport

PRODUCTIVE = "steps"
"""Cause of the time that is not lost."""
CAUSES: Mapping[str, str] = {
    PRODUCTIVE: "Steps whose result was kept.",
    "start": "Imports, building the model, reading the checkpoint, until the first loop of steps.",
    "compiling": "Extra time of the first loop over as many later steps: tracing and XLA.",
    "data": "Waiting for batches: the wait of the last step of a loop, times its steps.",
    "checkpoints": "Training stood still for checkpoints.",
    "evaluations": "Evaluations, and what is looked at after them.",
    "lost": "Steps that were done again after a kill, and steps that were skipped.",
    "other": "Figures, the measurement of the peak, the end of a process.",
}
"""Causes of the time of a run, with descriptions; all but the first lower the goodput."""

_PROCESS, _LOOP, _END = "process", "loop", "end"
_NOTED = ("checkpoints", "evaluations")


@dataclasses.dataclass(frozen=True)
class RunTime:
    """Time of a run by cause, over all its starts.

    The total is the wall time of its processes, each from its beginning to its last note. Goodput
    is the share of steps whose result was kept. Time between two processes, including a loop that
    a kill cut short, is counted separately.
    """

    seconds: Mapping[str, float]
    """Seconds for each of `CAUSES`."""
    down_seconds: float
    """Seconds between the processes; no part of `seconds`."""
    num_starts: int
    """Processes that trained."""

    @property
    def total_seconds(self) -> float:
        """Wall time of all processes."""
        return sum(self.seconds.values())

    @property
    def shares(self) -> dict[str, float]:
        """Share of the total for each of `CAUSES`; all 0 if there was no time."""
        total = self.total_seconds
        return {name: value / total if total else 0.0 for name, value in self.seconds.items()}

    @property
    def goodput(self) -> float:
        """Productive time over all, in `[0, 1]`."""
        return self.shares[PRODUCTIVE]

    def describe(self) -> str:
        """Returns a line of 80 columns: the goodput, and the two largest other causes."""
        others = [(value, name) for name, value in self.seconds.items() if name != PRODUCTIVE]
        largest = sorted(others, reverse=True)[:2]
        lost = [f"{name} {value:.1f}" for value, name in largest if value >= 0.05]
        starts = f", {self.num_starts} starts" if self.num_starts > 1 else ""
        return (
            f"goodput {self.goodput:.3f} of {self.total_seconds:.1f} s{starts}; "
            f"{', '.join(lost) or 'nothing else 0.0'} s"
        )


def read_run_time(lines: MetricsLines | None) -> RunTime | None:
    """Computes the time of a run from the lines of its `RunClock`; `None` without notes."""
    processes = [] if lines is None else _processes(lines.lines)
    return _run_time(processes) if processes else None


class RunClock:
    """Clock of a training process, which notes the causes of its time.

    It begins to count when it is created. The notes are lines of a file that no resume cuts off,
    unlike `metrics.jsonl`: a step that is done again is known by its earlier line. One process
    writes at a time, with the folder of its `DirectoryLock`.
    """

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._time = time.time()
        self._log: MetricsLog | None = None
        self._processes: list[_Process] = []

    def begin(self, log: MetricsLog, step: int) -> None:
        """Begins to write, after the notes of earlier processes; later steps will be done again."""
        log.continue_at_end()
        found = log.read()
        self._processes = [] if found is None else _processes(found.lines)
        self._log = log
        self.note(_PROCESS, step, time=self._time)

    def note_loop(self, report: LoopReport) -> None:
        """Notes a loop of steps."""
        self.note(
            _LOOP,
            report.step,
            seconds=report.seconds,
            num_steps=report.num_steps,
            num_skipped_steps=report.num_skipped_steps,
            data_wait_seconds=report.data_wait_seconds or 0.0,
            has_compiled=report.has_compiled,
        )

    def note(self, kind: str, step: int, **values: float) -> None:
        """Notes an event that has just ended: `checkpoints` and `evaluations` have `seconds`."""
        if self._log is not None:
            line = {**values, "until": time.monotonic() - self._begin}
            self._log.append(step, kind, line)
            _take(self._processes, {"step": step, "run": kind, **line})

    def end(self, step: int) -> RunTime | None:
        """Notes the end of the process and returns the time of the run; `None` if not begun."""
        self.note(_END, step)
        return self.run_time

    def flush_to_disk(self) -> None:
        """Makes the notes survive the machine, or raises StorageError."""
        if self._log is not None:
            self._log.flush_to_disk()

    @property
    def run_time(self) -> RunTime | None:
        """Time of the run so far, from all its loops; `None` if not begun."""
        return _run_time(self._processes) if self._log is not None else None


@dataclasses.dataclass
class _Loop:
    step: int
    seconds: float
    num_steps: int
    skipped_share: float
    data_seconds: float
    has_compiled: bool


@dataclasses.dataclass
class _Process:
    """Notes of one process."""

    first_step: int
    time: float
    until: float = 0.0
    start: float | None = None
    noted: dict[str, float] = dataclasses.field(default_factory=lambda: dict.fromkeys(_NOTED, 0.0))
    loops: list[_Loop] = dataclasses.field(default_factory=list)

    def seconds(self, next_step: int | None) -> dict[str, float]:
        """Returns the seconds by cause; the next process continued from `next_step`."""
        later = [loop for loop in self.loops if not loop.has_compiled]
        num_steps = sum(loop.num_steps for loop in later)
        step_seconds = sum(loop.seconds for loop in later) / num_steps if num_steps else 0.0
        found = {**dict.fromkeys(CAUSES, 0.0), **self.noted}
        for loop in self.loops:
            own = loop.num_steps * step_seconds if loop.has_compiled else loop.seconds
            ran = min(loop.seconds, own)
            useful = ran - min(loop.data_seconds, ran)
            num_redone = 0 if next_step is None else min(loop.step - next_step, loop.num_steps)
            kept = useful * (1.0 - loop.skipped_share) * (1.0 - max(num_redone, 0) / loop.num_steps)
            found["compiling"] += loop.seconds - ran
            found["data"] += ran - useful
            found["lost"] += useful - kept
            found[PRODUCTIVE] += kept
        start = self.until - sum(self.noted.values()) if self.start is None else self.start
        found["start"] = max(start, 0.0)
        found["other"] = max(self.until - sum(found.values()), 0.0)
        return found


def _run_time(processes: Sequence[_Process]) -> RunTime:
    seconds = dict.fromkeys(CAUSES, 0.0)
    down = 0.0
    for process, following in zip(processes, [*processes[1:], None], strict=True):
        own = process.seconds(None if following is None else following.first_step)
        seconds = {name: value + own[name] for name, value in seconds.items()}
        if following is not None:
            down += max(following.time - process.time - process.until, 0.0)
    return RunTime(seconds, down, len(processes))


def _processes(lines: Iterable[dict[str, Any]]) -> list[_Process]:
    found: list[_Process] = []
    for line in lines:
        _take(found, line)
    return found


def _take(processes: list[_Process], line: Mapping[str, Any]) -> None:
    """Adds a line to the last process, or begins a process."""
    if line["run"] == _PROCESS:
        processes.append(_Process(line["step"], _number(line, "time")))
    if not processes:
        return
    process, seconds = processes[-1], _number(line, "seconds")
    # A line cannot claim more than the time since the previous line.
    seconds = min(seconds, max(_number(line, "until") - process.until, 0.0))
    if line["run"] in _NOTED:
        process.noted[line["run"]] += seconds
    elif line["run"] == _LOOP and (num_steps := int(_number(line, "num_steps"))) > 0:
        if process.start is None:
            begin = _number(line, "until") - seconds
            process.start = begin - sum(process.noted.values())
        skipped = min(_number(line, "num_skipped_steps") / num_steps, 1.0)
        wait = _number(line, "data_wait_seconds") * num_steps
        has_compiled = line.get("has_compiled") is True
        process.loops.append(_Loop(line["step"], seconds, num_steps, skipped, wait, has_compiled))
    process.until = max(process.until, _number(line, "until"))


def _number(line: Mapping[str, Any], name: str) -> float:
    value = line.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return max(float(value), 0.0) if is_number else 0.0  # type: ignore[arg-type]
