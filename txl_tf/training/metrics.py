"""Figures of a run: their tags, and the log `metrics.jsonl`.

The tags are stable, so that curves of old and new runs share a chart.
"""

import contextlib
import json
import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from txl_tf.errors import storage_errors
from txl_tf.evaluation.result import EvaluationResult, TaskResult, bits, perplexity
from txl_tf.storage.appended_text import appended_text
from txl_tf.storage.locks import WritableFolder
from txl_tf.storage.untrusted_files import MAX_VALUES, parse_json
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
        "optimizer/learning_rate": "Learning rate that was applied in this step.",
        "optimizer/gradient_norm": "Global norm of the gradients before clipping, loop mean.",
        "optimizer/skipped_steps": "Steps of a loop that were skipped: not finite.",
    },
    "Throughput": {
        "performance/tokens_per_second": "Tokens of all replicas per second, compiling included.",
        "performance/step_seconds": "Wall time of a step, mean of a loop.",
        "performance/peak_share": "Share of the published peak operations per second of TPUs.",
        "performance/evaluation_seconds": "Wall time of an evaluation, compiling included.",
    },
    "Memory": {
        "memory/valid_length": "Filled positions of the training memory, mean of rows.",
        "memory/norm": "Mean norm of a filled position of the training memory, by layer.",
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


_WITH_PARTS = ("task/metric", "memory/norm")
TAGS: Mapping[str, Tag] = {
    name: Tag(name, page, description, name in _WITH_PARTS)
    for page, descriptions in _DESCRIPTIONS.items()
    for name, description in descriptions.items()
}
"""All tags by name; one with parts stands for all tags below it."""

TEXT_TAGS: Mapping[str, str] = {
    "configuration": "All settings of the experiment, and the identity of its data.",
    "conditions": "Lengths, rows and warm-up of an evaluation.",
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
    report: LoopReport, bytes_per_token: float | None, peak_tokens_per_second: float | None = None
) -> dict[str, float]:
    """Returns the figures of a loop of steps, by tag.

    `bytes_per_token` is `None` for a task and 0 for ids.
    """
    nats, rate = report.nats_per_token, report.tokens_per_second
    losses = {"loss/nats_per_token": nats, "loss/perplexity": perplexity(nats)}
    if bytes_per_token is None:
        losses = {"task/loss": nats}
    elif bytes_per_token:
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
        figures: dict[str, float | None] = {
            f"task/metric/{name}": value for name, value in result.figures.items()
        }
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


class MetricsLines(NamedTuple):
    """Lines of a metrics log, each with `step` and `run`; an incomplete last one is left out."""

    lines: list[dict[str, Any]]
    num_unreadable: int


class MetricsLog:
    """Log of a run's figures: one JSON object per line.

    A line has `step`, `run` (`train`, `process`, or the split of an evaluation) and the values by
    tag, see `TAGS`, exact to the last bit; a value that is not finite is `null`. Damaged lines
    never stop a run. One process writes at a time, in its `locked_folder`.
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
    try:
        line: Any = parse_json(content, max_values=MAX_VALUES) if content[-1:] == b"\n" else None
        is_known = type(line["step"]) is int and line["step"] >= 0 and isinstance(line["run"], str)
        return line if is_known else None
    except (ValueError, TypeError, LookupError):
        return None
