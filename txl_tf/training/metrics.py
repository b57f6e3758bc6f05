"""Figures of a run: their tags, `metrics.jsonl`, a line per report, and `time.jsonl`, its time.

The tags are stable, so that curves of old and new runs share a chart.
"""

import contextlib
import dataclasses
import json
import math
import os
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from txl_tf.evaluation.result import EvaluationResult, TaskResult, bits, perplexity
from txl_tf.storage.locks import WritableFolder, appended_text
from txl_tf.storage.untrusted_files import MAX_VALUES, parse_json, storage_errors

if TYPE_CHECKING:
    from txl_tf.training.ledger import LoopReport

PAGES = ("Perplexity", "Optimisation", "Throughput", "Memory")
"""Pages of the custom-scalars layout, in order."""
TASK_PAGES = ("Task", "Optimisation", "Throughput")
"""Pages of a fine-tuning run, which has no perplexity and carries no memory."""

_DESCRIPTIONS: dict[str | None, dict[str, str]] = {
    "Perplexity": {
        "loss/perplexity": "Exponential of the mean loss per token; in training, with dropout.",
        "loss/bits_per_byte": "Bits per byte of text; does not depend on the tokenizer.",
        "loss/nats_per_token": "Mean negative log-likelihood of a token, in nats.",
        "sample/perplexity": "Perplexity of generated text under the model; low if repetitive.",
    },
    None: {
        "loss/bits_per_character": "Bits per UTF-8 code point of text.",
        "loss/word_perplexity": "Exponential of the nats per word between white space.",
    },
    "Task": {
        "task/loss": "Mean loss of an example in a loop, with dropout.",
        "task/metric": "Metrics of the validation examples.",
    },
    "Optimisation": {
        "optimizer/learning_rate": "Learning rate of the next step.",
        "optimizer/gradient_norm": "Global norm of the gradients before clipping, loop mean.",
        "optimizer/skipped_steps": "Steps of a loop skipped as not finite or as a spike.",
    },
    "Throughput": {
        "performance/tokens_per_second": "Tokens of all replicas per second, compiling included.",
        "performance/step_seconds": "Wall time of a step, mean of a loop.",
        "performance/checkpoint_seconds": "Pause of training for a checkpoint, without writing.",
        "performance/peak_share": "Operations per second over the peak, published or measured.",
        "performance/goodput": "Time of steps whose result was kept over all time so far.",
        "performance/evaluation_seconds": "Wall time of an evaluation, compiling included.",
    },
    "Memory": {
        "memory/valid_length": "Filled positions of the memory at an evaluation, mean of rows.",
        "memory/norm": "Mean norm of a filled position of the memory, by layer.",
        "memory/attention_mass": "Share of attention on the memory, by layer; one batch.",
    },
}


class Tag(NamedTuple):
    """Figure of a run, in TensorBoard and in `metrics.jsonl`; each page has a chart for each tag.

    With parts, there are tags below it: of each layer, see `layer_tag`, or of each metric.
    """

    name: str
    page: str | None
    description: str
    has_parts: bool


_WITH_PARTS = ("task/metric", "memory/norm", "memory/attention_mass")
TAGS: Mapping[str, Tag] = {
    name: Tag(name, page, description, name in _WITH_PARTS)
    for page, descriptions in _DESCRIPTIONS.items()
    for name, description in descriptions.items()
}
"""All tags by name; one with parts stands for all tags below it."""

TEXT_TAGS: Mapping[str, str] = {
    "configuration": "All settings of the experiment, and the identity of its data.",
    "model_size": "Trainable parameters, of all and by part of the model.",
    "sample": "Text that the model continues, from the beginning of the split, at an evaluation.",
}
"""Descriptions of the texts, by tag."""


def layer_tag(name: str, layer: int) -> str:
    """Returns the tag of a layer; `layer` counts from 0, and the tag from 1."""
    return f"{name}/layer_{layer + 1:02d}"


def describe_tag(name: str) -> Tag:
    """Returns the entry of `TAGS` that a tag belongs to."""
    return TAGS.get(name) or TAGS[name.rpartition("/")[0]]


def training_figures(
    report: "LoopReport", bytes_per_token: float | None, peak_tokens_per_second: float | None = None
) -> dict[str, float]:
    """Returns the figures of a loop of steps, by tag.

    `bytes_per_token`, of the training split, is `None` for a task and 0 for ids.
    `peak_tokens_per_second` is the rate at the peak of the devices.
    """
    nats, rate = report.nats_per_token, report.tokens_per_second
    if bytes_per_token is None:
        losses = {"task/loss": nats}
    else:
        losses = {
            "loss/nats_per_token": nats,
            "loss/perplexity": perplexity(nats),
        }
    if bytes_per_token:
        losses["loss/bits_per_byte"] = bits(nats) / bytes_per_token
    figures = {
        **losses,
        "optimizer/learning_rate": report.learning_rate,
        "optimizer/gradient_norm": report.gradient_norm,
        "optimizer/skipped_steps": report.num_skipped_steps,
        "performance/tokens_per_second": rate,
        "performance/step_seconds": report.seconds / report.num_steps,
    }
    if peak_tokens_per_second is not None:
        figures["performance/peak_share"] = rate / peak_tokens_per_second
    return figures


def evaluation_figures(result: EvaluationResult | TaskResult) -> dict[str, float]:
    """Returns the available figures of an evaluation, by tag."""
    if isinstance(result, TaskResult):
        figures = {f"task/metric/{name}": value for name, value in result.figures.items()}
    else:
        figures = {
            "loss/nats_per_token": result.nats_per_token,
            "loss/perplexity": result.perplexity,
            "loss/bits_per_byte": result.bits_per_byte,
            "loss/bits_per_character": result.bits_per_character,
            "loss/word_perplexity": result.word_perplexity if result.has_words else None,
        }
    figures["performance/evaluation_seconds"] = result.seconds
    return {tag: value for tag, value in figures.items() if value is not None}


TRAINING_RUN = "train"
"""Run with the figures of training, here and in TensorBoard; each split has its own run."""
PROCESS_RUN = "process"
"""Run with the command and the environment of each training process."""


@dataclasses.dataclass(frozen=True)
class MetricsLines:
    """Lines of a metrics log, each with `step` and `run`; an incomplete last one is left out."""

    lines: list[dict[str, Any]]
    num_unreadable: int

    def merged(self) -> dict[str, dict[int, dict[str, Any]]]:
        """Returns the figures by run and step; later lines replace the figures of earlier ones."""
        found: dict[str, dict[int, dict[str, Any]]] = {}
        for line in self.lines:
            figures = {name: value for name, value in line.items() if name not in ("step", "run")}
            found.setdefault(line["run"], {}).setdefault(line["step"], {}).update(figures)
        return {run: dict(sorted(steps.items())) for run, steps in found.items()}


class MetricsLog:
    """Log of a run's figures: one JSON object per line.

    A line has `step`, `run` (`train`, `process`, or the split of an evaluation) and the values by
    tag, see `TAGS`, exact to the last bit; a value that is not finite is `null`. A resumed run cuts
    off the lines after its checkpoint. Damaged lines never stop a run. One process writes at a
    time, in its `locked_folder`; see `appended_text`.
    """

    def __init__(self, path: str | os.PathLike[str], folder: WritableFolder | None = None) -> None:
        self._path = os.fspath(path)
        self._files = appended_text(self._path, folder)
        self._num_lines = 0

    def read(self) -> MetricsLines | None:
        """Reads all valid lines; `None` if there is no log."""
        with self._storage_errors():
            found = self._files.lines()
            contents = None if found is None else list(found)
        if contents is None:
            return None
        # A kill may cut the last line short.
        is_cut = bool(contents) and not contents[-1].endswith(b"\n")
        lines = [line for line in map(_parsed, contents) if line is not None]
        return MetricsLines(lines, len(contents) - len(lines) - is_cut)

    def resume(self, step: int, evaluated_step: int) -> None:
        """Cuts off lines of training after `step`, and of evaluations after `evaluated_step`.

        It comes before the first `append`.
        """
        limits = {TRAINING_RUN: step, PROCESS_RUN: step}
        with self._storage_errors():
            contents = self._files.lines()
            if contents is None:
                self._files.begin("")
                return
            num_bytes = kept_bytes = kept_lines = 0
            for number, content in enumerate(contents):
                num_bytes += len(content)
                line = _parsed(content)
                if line is None:
                    continue
                if line["step"] > limits.get(line["run"], evaluated_step):
                    break
                kept_bytes, kept_lines = num_bytes, number + 1
            self._files.cut(kept_bytes)
            self._num_lines = kept_lines

    def continue_at_end(self) -> None:
        """Keeps all lines of a finished run; comes before the first `append`."""
        self.resume(*[1 << 62] * 2)

    def append(self, step: int, run: str, values: Mapping[str, Any]) -> None:
        """Writes a line of `train` or a split; values by tag are numbers, texts or JSON objects."""
        text = json.dumps({"step": step, "run": run, **_finite(values)}, allow_nan=False) + "\n"
        with self._storage_errors():
            # Numbered by line, because a step may have several.
            self._files.append(text, self._num_lines)
        self._num_lines += 1

    def flush_to_disk(self) -> None:
        """Makes the appended lines survive the machine, or raises StorageError."""
        with self._storage_errors():
            self._files.flush()

    def _storage_errors(self) -> contextlib.AbstractContextManager[None]:
        what = "The metrics of the run cannot be read or written"
        remedy = "Make room or check the permissions, and start again."
        return storage_errors(what, self._path, remedy)


def _finite(values: Any) -> Any:
    """Replaces numbers that JSON cannot hold by `None`."""
    if isinstance(values, Mapping):
        return {name: _finite(value) for name, value in values.items()}
    return None if isinstance(values, float) and not math.isfinite(values) else values


def _parsed(content: bytes) -> dict[str, Any] | None:
    if not content.endswith(b"\n"):
        return None
    try:
        line = parse_json(content, max_values=MAX_VALUES)
    except ValueError:
        return None
    is_known = (
        isinstance(line, dict)
        and type(line.get("step")) is int
        and line["step"] >= 0
        and isinstance(line.get("run"), str)
    )
    return line if is_known else None


PRODUCTIVE = "steps"
"""Cause of the time that is not lost."""
CAUSES: Mapping[str, str] = {
    PRODUCTIVE: "Steps whose result was kept.",
    "start": "Imports, building the model, reading the checkpoint, until the first loop of steps.",
    "compiling": "Extra time of the first loop over as many later steps: tracing and XLA.",
    "checkpoints": "Training stood still for checkpoints.",
    "evaluations": "Evaluations, and what is looked at after them.",
    "lost": "Steps that were done again after a kill, and steps that were skipped.",
    "other": "Figures, the measurement of the peak, the end of a process.",
}
"""Causes of the time of a run, with descriptions; all but the first lower the goodput."""


@dataclasses.dataclass(frozen=True)
class RunTime:
    """Time of a run over all its starts: `seconds` for each of `CAUSES`.

    The total is the wall time of its processes, each from its beginning to its last note. Goodput
    is the share of steps whose result was kept. Time between two processes, including a loop that
    a kill cut short, is counted separately, as `down_seconds`.
    """

    seconds: Mapping[str, float]
    down_seconds: float
    num_starts: int

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
        lost = [f"{name} {value:.1f}" for value, name in sorted(others)[:-3:-1] if value >= 0.05]
        starts = f", {self.num_starts} starts" if self.num_starts > 1 else ""
        return (
            f"goodput {self.goodput:.3f} of {self.total_seconds:.1f} s{starts}; "
            f"{', '.join(lost) or 'nothing else 0.0'} s"
        )


class RunClock:
    """Clock of a training process: the seconds of each cause, in a file that no resume cuts off.

    It begins to count when it is created. A line has the process, by the time of its beginning, the
    seconds until then, and the seconds of each cause. One process writes at a time, in its
    `locked_folder`.
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
        found = log.read()
        self._lines = [] if found is None else found.lines
        self._log = log
        self.note("other", step)

    def note_loop(self, report: "LoopReport") -> None:
        """Notes a loop of steps; the first one of a process also compiles."""
        seconds, first = report.seconds, self._first_loop
        if report.has_compiled:
            before = time.monotonic() - self._begin - seconds
            self._seconds["start"] = max(before - sum(self._seconds.values()), 0.0)
            self._first_loop = report
            self.note("compiling", report.step, seconds)
            return
        if first is not None:
            ran = min(first.seconds, first.num_steps * seconds / report.num_steps)
            self._seconds["compiling"] -= ran
            seconds += ran
            self._first_loop = None
        lost = seconds * report.num_skipped_steps / report.num_steps
        self._seconds["lost"] += lost
        self.note(PRODUCTIVE, report.step, seconds - lost)

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
        processes.setdefault(_number(line, "process"), []).append(line)
    if not processes:
        return None
    seconds, down = dict.fromkeys(CAUSES, 0.0), 0.0
    starts = list(processes.items())
    for (begin, own), following in zip(starts, [*starts[1:], None], strict=True):
        until = _number(own[-1], "until")
        found = {name: _number(own[-1], name) for name in CAUSES}
        if following is not None:
            next_begin, (next_line, *_) = following
            done = [line for line in own if line["step"] <= next_line["step"]]
            kept = _number(done[-1], PRODUCTIVE) if done else 0.0
            found["lost"] += found[PRODUCTIVE] - kept
            found[PRODUCTIVE] = kept
            down += max(next_begin - begin - until, 0.0)
        found["other"] = max(until - sum(found.values()), 0.0)
        seconds = {name: value + found[name] for name, value in seconds.items()}
    return RunTime(seconds, down, len(processes))


def _number(line: Mapping[str, Any], name: str) -> float:
    value = line.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return max(float(value), 0.0) if is_number else 0.0  # type: ignore[arg-type]
