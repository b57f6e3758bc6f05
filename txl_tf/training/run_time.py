"""Use of time of a run, `time.jsonl`: steps that were kept, and the causes of all other time."""

import collections
import dataclasses
import itertools
import time
from collections.abc import Iterable, Mapping
from typing import Any

from txl_tf.training.ledger import LoopReport
from txl_tf.training.metrics import MetricsLog

PRODUCTIVE = "steps"
"""Cause of the time that is not lost."""
CAUSES: Mapping[str, str] = {
    PRODUCTIVE: "Steps whose result was kept.",
    "start": "Imports, building the model, reading the checkpoint, until the first loop of steps.",
    "compiling": "Tracing and XLA: time by which the first loop exceeds a later one.",
    "checkpoints": "Training stood still for checkpoints.",
    "evaluations": "Evaluations, and what is looked at after them.",
    "lost": "Steps that were done again after a kill, and steps that were skipped.",
    "other": "Figures, and the end of a process.",
}
"""Causes of the time of a run, with descriptions; all but the first lower the goodput."""


@dataclasses.dataclass(frozen=True)
class RunTime:
    """Wall time of all processes of a run: `seconds` for each of `CAUSES`.

    Goodput is the share of steps whose result was kept. `down_seconds` passed between the
    processes; they include a loop that a kill cut short, and belong to no cause.
    """

    seconds: Mapping[str, float]
    down_seconds: float
    num_starts: int

    @property
    def total_seconds(self) -> float:
        """Wall time of all processes."""
        return sum(self.seconds.values())

    @property
    def goodput(self) -> float:
        """Productive time over all, in `[0, 1]`."""
        return self.seconds[PRODUCTIVE] / self.total_seconds if self.total_seconds else 0.0

    def describe(self) -> str:
        """Returns a line: the share of steps that were kept, and the two largest other causes."""
        others = [(value, name) for name, value in self.seconds.items() if name != PRODUCTIVE]
        causes = ", ".join(f"{name} {value:.1f}" for value, name in sorted(others)[:-3:-1])
        starts = f", {self.num_starts} starts" if self.num_starts > 1 else ""
        return f"time: {self.total_seconds:.1f} s{starts}, {self.goodput:.0%} in steps; {causes} s"


class RunClock:
    """Clock of a training process, from its creation: the seconds of each cause.

    No resume cuts its file. A line has the process, by the time of its beginning, the seconds until
    then, and the seconds of each cause.
    """

    def __init__(self) -> None:
        self._begin, self._process = time.monotonic(), time.time()
        self._seconds = dict.fromkeys(CAUSES, 0.0)
        self._first_loop: LoopReport | None = None
        self._log: MetricsLog | None = None
        self._lines: list[dict[str, Any]] = []

    def begin(self, log: MetricsLog, step: int) -> None:
        """Begins to write, after the lines of earlier processes; later steps will be done again."""
        log.continue_at_end()
        content = log.read()
        self._lines = [] if content is None else content.lines
        self._log = log
        self.note("other", step)

    def note_loop(self, report: LoopReport) -> None:
        """Notes a loop of steps; the first one of a process also compiles."""
        seconds = report.seconds
        if report.has_compiled:
            before = time.monotonic() - self._begin - seconds
            self._seconds["start"] = max(before - sum(self._seconds.values()), 0.0)
            self._first_loop = report
            self.note("compiling", report.step, seconds)
            return
        if (first := self._first_loop) is not None:
            # The first loop would have taken this long without compiling.
            ran = min(first.seconds, first.num_steps * seconds / report.num_steps)
            self._seconds["compiling"] -= ran
            seconds += ran
            self._first_loop = None
        lost_seconds = seconds * report.num_skipped_steps / report.num_steps
        self._seconds["lost"] += lost_seconds
        self.note(PRODUCTIVE, report.step, seconds - lost_seconds)

    def note(self, cause: str, step: int, seconds: float = 0.0) -> None:
        """Notes seconds that have just passed."""
        if self._log is not None:
            self._seconds[cause] += seconds
            until = time.monotonic() - self._begin
            line = {"process": self._process, "until": until, **self._seconds}
            self._log.append(step, "time", line)
            self._lines.append({"step": step, **line})

    def flush_to_disk(self) -> None:
        """Makes the notes survive the machine, or raises StorageError."""
        if self._log is not None:
            self._log.flush_to_disk()

    @property
    def run_time(self) -> RunTime | None:
        """Time of the run so far, from all its loops; `None` if not begun."""
        return run_time_of(self._lines)


def run_time_of(lines: Iterable[dict[str, Any]]) -> RunTime | None:
    """Computes the time of a run from the lines of its `RunClock`; `None` without lines."""
    processes: dict[float, list[dict[str, Any]]] = {}
    for line in lines:
        if line.keys() >= {"process", "until", *CAUSES}:  # else it is damaged
            processes.setdefault(line["process"], []).append(line)
    if not processes:
        return None
    seconds, down = collections.Counter(dict.fromkeys(CAUSES, 0.0)), 0.0
    for (begin, own), next_start in itertools.zip_longest(
        processes.items(), list(processes.items())[1:]
    ):
        own_seconds = {name: own[-1][name] for name in CAUSES}
        if next_start is not None:
            next_begin, (next_line, *_) = next_start
            kept_seconds = [line[PRODUCTIVE] for line in own if line["step"] <= next_line["step"]]
            own_seconds[PRODUCTIVE] = max(kept_seconds, default=0.0)
            own_seconds["lost"] += own[-1][PRODUCTIVE] - own_seconds[PRODUCTIVE]
            down += max(next_begin - begin - own[-1]["until"], 0.0)
        own_seconds["other"] = max(own[-1]["until"] - sum(own_seconds.values()), 0.0)
        seconds.update(own_seconds)
    return RunTime(dict(seconds), down, len(processes))
