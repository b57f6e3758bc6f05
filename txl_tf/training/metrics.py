"""Figures of a run: their tags, `metrics.jsonl` and TensorBoard.

The tags are stable, so that curves of old and new runs share a chart.
"""

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from txl_tf.errors import storage_errors
from txl_tf.evaluation.result import EvaluationResult, TaskResult, bits, perplexity
from txl_tf.imports import tensorflow as tf
from txl_tf.storage.appended_text import appended_text
from txl_tf.storage.files import list_folder
from txl_tf.storage.locks import WritableFolder
from txl_tf.storage.untrusted_files import MAX_VALUES, parse_json
from txl_tf.training.ledger import LoopReport

if TYPE_CHECKING:
    from tensorboard.plugins.custom_scalar import layout_pb2

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


# Summaries are float32, and TensorFlow refuses larger numbers. The word perplexity of a text
# without spaces has hundreds of digits.
_LARGEST = float(np.finfo(np.float32).max)


class TensorBoardWriter:
    """TensorBoard writer with one run for training and one per split; see `TAGS`.

    A resumed run repeats steps, so figures of an earlier process are not written twice.
    `metrics_log` gets the same values.
    """

    def __init__(
        self, folder: str | os.PathLike[str] | WritableFolder, metrics_log: MetricsLog | None = None
    ) -> None:
        self._folder = WritableFolder.at(folder)
        self._metrics_log = metrics_log
        self._writers: dict[str, Any] = {}
        self._earlier: dict[str, set[tuple[str, int]]] = {}

    def write_overview(
        self,
        step: int,
        run: str,
        pages: Sequence[str],
        settings: Mapping[str, Any],
        texts: Mapping[str, str],
    ) -> None:
        """Writes the pages, hyperparameters and texts, Markdown by a tag of `TEXT_TAGS`.

        The figures of `run` are the metrics of the hyperparameters, which are `settings`.
        """
        from tensorboard.plugins.custom_scalar import summary as custom_scalars
        from tensorboard.plugins.hparams import api as hparams_api

        path = os.path.abspath(self._folder.path)
        # By default runs of equal settings are one trial, whose figures are averaged.
        trial_id = f"{os.path.basename(os.path.dirname(path))} in {path}"
        summaries = (
            custom_scalars.pb(pages_layout(pages)),
            # Without a list of their names TensorBoard finds their types, and which differ.
            hparams_api.hparams_pb(dict(settings), trial_id=trial_id),
        )
        with self._writing(run):
            for summary in summaries:
                tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step=0)
        for tag, text in texts.items():
            self._write_text(TRAINING_RUN, step, tag, text)

    def write_evaluation(self, result: EvaluationResult | TaskResult) -> None:
        """Writes figures and conditions of an evaluation; the log gets its totals too."""
        own: dict[str, Any] = {"result": result.to_dict()}
        if isinstance(result, EvaluationResult):
            own["conditions"] = result.conditions
            self._write_text(result.split, result.step, "conditions", result.conditions)
        self.write_figures(result.step, result.split, evaluation_figures(result), own)

    def write_figures(
        self,
        step: int,
        run: str,
        figures: Mapping[str, float],
        beside: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes figures by tag; `beside` has values for the log alone."""
        with self._writing(run):
            for tag, value in figures.items():
                if (tag, step) in self._earlier[run]:
                    continue
                description = describe_tag(tag).description
                tf.summary.scalar(tag, min(value, _LARGEST), step=step, description=description)
        if self._metrics_log is not None:
            self._metrics_log.append(step, run, {**figures, **(beside or {})})

    def write_sample(self, step: int, text: str, perplexity: float, run: str) -> None:
        """Writes a generated text unchanged, with its perplexity."""
        block = f"Perplexity {perplexity:.4g}\n\n{code_block(text)}"
        self._write_text(run, step, "sample", block)
        self.write_figures(step, run, {"sample/perplexity": perplexity}, {"sample": text})

    def _write_text(self, run: str, step: int, tag: str, text: str) -> None:
        with self._writing(run):
            if (tag, step) not in self._earlier[run]:
                tf.summary.text(tag, text, step=step, description=TEXT_TAGS[tag])

    @contextlib.contextmanager
    def _writing(self, run: str) -> Iterator[None]:
        """Writes the summaries of the block into the file of a run, or raises StorageError."""
        what, remedy = "The figures for TensorBoard cannot be written", "Make room or check access."
        with storage_errors(what, self._folder.path, remedy):
            self._folder.check()
            if run not in self._writers:
                path = os.path.join(self._folder.path, run)
                self._earlier[run] = _tags_and_steps(path)
                self._writers[run] = tf.summary.create_file_writer(path)
        from txl_tf.distribution.remote_hosts import this_host

        writer = self._writers[run]
        with this_host():
            with writer.as_default():
                yield
            writer.flush()


def _tags_and_steps(folder: str) -> set[tuple[str, int]]:
    """Reads the tags and steps of all summaries in a folder; a record that was cut ends a file."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    files = [name for name in list_folder(folder) if "tfevents" in name]
    return {
        (value.tag, event.step)
        for name in files
        for event in EventFileLoader(os.path.join(folder, name)).Load()
        for value in event.summary.value
    }


def code_block(text: str) -> str:
    """Returns Markdown that shows a text unchanged."""
    return "\n".join("    " + line for line in text.splitlines())


def pages_layout(pages: Sequence[str]) -> "layout_pb2.Layout":
    """Returns the layout of the custom-scalars page: a chart for each tag, on its page."""
    from tensorboard.plugins.custom_scalar import layout_pb2

    def charts(page: str) -> "Iterator[layout_pb2.Chart]":
        for tag in TAGS.values():
            if tag.page == page:
                # A regular expression, which matches the tag in all runs.
                pattern = f"^{tag.name}/" if tag.has_parts else f"^{tag.name}$"
                lines = layout_pb2.MultilineChartContent(tag=[pattern])
                yield layout_pb2.Chart(title=tag.name, multiline=lines)

    return layout_pb2.Layout(
        category=[layout_pb2.Category(title=page, chart=charts(page)) for page in pages]
    )
