"""Figures of a run: their tags and pages in TensorBoard, and `metrics.jsonl`, a line per report.

The tags are stable, so that curves of old and new runs share a chart.
"""

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

from txl_tf import metrics
from txl_tf.evaluation.result import EvaluationResult, TaskResult
from txl_tf.storage.appended_text import AppendedText
from txl_tf.storage.untrusted_files import MAX_VALUES, parse_json, storage_errors
from txl_tf.storage.writable_folder import WritableFolder
from txl_tf.training.step_report import LoopReport

LOSSES = "loss/"
"""Prefix of the tags of losses, which training and evaluations share."""
PAGES = ("Perplexity", "Optimisation", "Throughput", "Memory")
"""Pages of the custom-scalars layout, in order."""
TASK_PAGES = ("Task", "Optimisation", "Throughput")
"""Pages of a fine-tuning run, which has no perplexity and carries no memory."""


@dataclasses.dataclass(frozen=True)
class Tag:
    """Figure of a run."""

    name: str
    """Name in TensorBoard and in `metrics.jsonl`."""
    page: str | None
    """Page of its chart; `None` without a page."""
    title: str
    """Title of its chart."""
    description: str
    """Meaning and unit, and the time of writing."""
    has_parts: bool
    """True if each layer, see `layer_tag`, or each metric has its own tag below it."""


# Name, with a slash at its end for one with parts: title, description.
_TAGS_OF_PAGE: dict[str | None, dict[str, tuple[str, str]]] = {
    "Perplexity": {
        "loss/perplexity": (
            "Perplexity",
            "Exponential of the mean loss per token: in training of a loop, with dropout.",
        ),
        "loss/bits_per_byte": (
            "Bits per byte",
            "Bits per byte of text; does not depend on the tokenizer.",
        ),
        "loss/nats_per_token": (
            "Loss, nats per token",
            "Mean negative log-likelihood of a token, in nats.",
        ),
        "sample/perplexity": (
            "Perplexity of the text sample",
            "Perplexity of generated text under the model; very low if it repeats itself.",
        ),
    },
    None: {
        "loss/bits_per_character": ("Bits per character", "Bits per UTF-8 code point of text."),
        "loss/word_perplexity": (
            "Perplexity per word",
            "Exponential of the nats per word between white space.",
        ),
    },
    "Task": {
        "task/loss": ("Loss of the task", "Mean loss of an example, with dropout, of a loop."),
        "task/metric/": ("Metrics of the task", "Metrics of the validation examples."),
    },
    "Optimisation": {
        "optimizer/learning_rate": ("Learning rate", "Learning rate of the next step."),
        "optimizer/gradient_norm": (
            "Gradient norm",
            "Global norm of the gradients before clipping, mean of a loop.",
        ),
        "optimizer/update_ratio": (
            "Update to weight ratio",
            "Norm of the last update of a loop over the norm of the weights, by sampled rows.",
        ),
        "optimizer/skipped_steps": (
            "Skipped steps",
            "Steps of a loop that changed no weight: a loss or gradient not finite, or a spike.",
        ),
    },
    "Throughput": {
        "performance/tokens_per_second": (
            "Tokens per second",
            "Tokens of all replicas per second of wall time of a loop, compiling included.",
        ),
        "performance/step_seconds": (
            "Step time, seconds",
            "Wall time of a step, mean of a loop.",
        ),
        "performance/data_wait_seconds": (
            "Data wait, seconds",
            "Time that the last step of a loop waited for its batch, if one device trains.",
        ),
        "performance/checkpoint_seconds": (
            "Checkpoint time, seconds",
            "Time that training stood still for a checkpoint, without writing it.",
        ),
        "performance/peak_share": (
            "Share of the device's peak",
            "Operations per second over the peak: published of TPUs, else of large products.",
        ),
        "performance/goodput": (
            "Goodput of the run",
            "Time of steps whose result was kept over the wall time of all processes so far.",
        ),
        "performance/evaluation_seconds": (
            "Evaluation time, seconds",
            "Wall time of an evaluation of the split, compiling included.",
        ),
    },
    "Memory": {
        "memory/valid_length": (
            "Valid length, tokens",
            "Filled positions of the training memory at an evaluation, mean of the rows.",
        ),
        "memory/norm/": (
            "Norm by layer",
            "Norm of a filled position of the training memory, mean of positions and rows.",
        ),
        "memory/attention_mass/": (
            "Attention mass on memory by layer",
            "Share of attention that goes to the memory, mean of heads and queries of one batch.",
        ),
    },
}
TAGS: Mapping[str, Tag] = {
    name.rstrip("/"): Tag(name.rstrip("/"), page, *texts, has_parts=name.endswith("/"))
    for page, tags in _TAGS_OF_PAGE.items()
    for name, texts in tags.items()
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
    report: LoopReport,
    bytes_per_token: float | None,
    peak_tokens_per_second: float | None = None,
) -> dict[str, float]:
    """Returns the figures of a loop of steps, by tag.

    `bytes_per_token`, of the training split, is `None` for a task. `peak_tokens_per_second` is the
    rate at the peak of the devices.
    """
    if bytes_per_token is None:
        figures = {"task/loss": report.nats_per_token}
    else:
        figures = {
            "loss/nats_per_token": report.nats_per_token,
            "loss/perplexity": report.perplexity,
            "loss/bits_per_byte": metrics.bits(report.nats_per_token) / bytes_per_token,
        }
    figures |= {
        "optimizer/learning_rate": report.learning_rate,
        "optimizer/gradient_norm": report.gradient_norm,
        "optimizer/skipped_steps": report.num_skipped_steps,
        "performance/tokens_per_second": report.tokens_per_second,
        "performance/step_seconds": report.seconds / report.num_steps,
    }
    measured = {
        "optimizer/update_ratio": report.update_ratio,
        "performance/data_wait_seconds": report.data_wait_seconds,
    }
    figures |= {tag: value for tag, value in measured.items() if value is not None}
    if peak_tokens_per_second is not None:
        figures["performance/peak_share"] = report.tokens_per_second / peak_tokens_per_second
    return figures


def evaluation_figures(result: EvaluationResult | TaskResult) -> dict[str, float]:
    """Returns the available figures of an evaluation, by tag."""
    if isinstance(result, TaskResult):
        of_task = {f"task/metric/{name}": value for name, value in result.figures.items()}
        return {**of_task, "performance/evaluation_seconds": result.seconds}
    figures = {
        "loss/nats_per_token": result.nats_per_token,
        "loss/perplexity": result.perplexity,
        "loss/bits_per_byte": result.bits_per_byte,
        "loss/bits_per_character": result.bits_per_character,
        "loss/word_perplexity": result.word_perplexity if result.has_words else None,
        "performance/evaluation_seconds": result.seconds,
    }
    return {tag: value for tag, value in figures.items() if value is not None}


TRAINING_RUN = "train"
"""Run with the figures of training, here and in TensorBoard; each split has its own run."""
PROCESS_RUN = "process"
"""Run with the command and the environment of each training process."""

_MAX_LINE_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class MetricsLines:
    """Lines read from a metrics log."""

    lines: list[dict[str, Any]]
    """The lines, each with `step` and `run`, in the order of writing."""
    num_unreadable: int
    """Number of invalid lines, without an incomplete last line."""

    def merged(self) -> dict[str, dict[int, dict[str, Any]]]:
        """Returns the figures by run and step; later lines replace the figures of earlier ones."""
        found: dict[str, dict[int, dict[str, Any]]] = {}
        for line in self.lines:
            figures = {name: value for name, value in line.items() if name not in ("step", "run")}
            found.setdefault(line["run"], {}).setdefault(line["step"], {}).update(figures)
        return {run: dict(sorted(steps.items())) for run, steps in found.items()}

    def evaluation_losses(self, step: int) -> dict[str, dict[str, float]]:
        """Returns the losses of the evaluations after a step, by split and name."""
        found: dict[str, dict[str, float]] = {}
        for split, steps in self.merged().items():
            losses = {
                tag.removeprefix(LOSSES): value
                for tag, value in steps.get(step, {}).items()
                if tag.startswith(LOSSES) and value is not None
            }
            if losses and split not in (TRAINING_RUN, PROCESS_RUN):
                found[split] = losses
        return found


class MetricsLog:
    """Log of a run's figures: one JSON object per line.

    A line has `step`, `run` (`train`, `process`, or the split of an evaluation) and the values by
    tag, see `TAGS`, exact to the last bit; a value that is not finite is
    `null`. A resumed run cuts off the lines after its checkpoint. Damaged lines never stop a run.
    See `AppendedText` for the arguments. One process writes at a time, with the folder of its
    `DirectoryLock`.
    """

    def __init__(self, path: str | os.PathLike[str], folder: WritableFolder | None = None) -> None:
        self._path = os.fspath(path)
        self._files = AppendedText.at(self._path, folder, _MAX_LINE_BYTES)
        self._num_lines = 0

    def read(self) -> MetricsLines | None:
        """Reads all valid lines; `None` if there is no log."""
        with self._storage_errors():
            contents = self._files.lines()
            return None if contents is None else _parsed(contents)

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
                line = _line(content)
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


def _parsed(contents: Iterable[bytes]) -> MetricsLines:
    lines, unreadable, is_whole = [], 0, True
    for content in contents:
        line, is_whole = _line(content), content.endswith(b"\n")
        if line is None:
            unreadable += 1
        else:
            lines.append(line)
    # A kill may cut the last line short.
    return MetricsLines(lines, unreadable - (not is_whole))


def _line(content: bytes) -> dict[str, Any] | None:
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
