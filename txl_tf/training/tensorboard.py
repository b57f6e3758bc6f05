"""TensorBoard writer of scalars, text, hyperparameters and the layout of its pages."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import summary as custom_scalars
from tensorboard.plugins.hparams import api as hparams_api

from txl_tf.distribution.remote_hosts import this_host
from txl_tf.evaluation.result import EvaluationResult, TaskResult
from txl_tf.storage.locks import WritableFolder
from txl_tf.storage.untrusted_files import storage_errors
from txl_tf.training.metrics import (
    TAGS,
    TEXT_TAGS,
    TRAINING_RUN,
    MetricsLog,
    describe_tag,
    evaluation_figures,
)

# Summaries are float32, and TensorFlow refuses larger numbers. The word perplexity of a text
# without spaces has hundreds of digits.
_LARGEST = float(tf.float32.max)
_METRICS = ("loss/perplexity", "loss/bits_per_byte", "loss/nats_per_token")


class TensorBoardWriter:
    """TensorBoard writer with one run for training and one per split.

    The losses have the same tags in all runs, so that TensorBoard draws them in one chart; see
    `TAGS`. `metrics_log` gets the same values.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | WritableFolder,
        metrics_log: MetricsLog | None = None,
    ) -> None:
        self._folder = WritableFolder.at(folder)
        self._metrics_log = metrics_log
        self._writers: dict[str, tf.summary.SummaryWriter] = {}
        self._described: set[tuple[str, str]] = set()

    def write_overview(
        self,
        step: int,
        run: str,
        pages: Sequence[str],
        settings: Mapping[str, Any],
        texts: Mapping[str, str],
    ) -> None:
        """Writes the pages, hyperparameters and texts, Markdown by a tag of `TEXT_TAGS`.

        `step` counts the steps done when the process started. The losses of `run` are the metrics
        of the hyperparameters, which are `settings`.
        """
        summaries = (
            custom_scalars.pb(pages_layout(pages)),
            hparams_api.hparams_config_pb(
                [hparams_api.HParam(name) for name in settings],
                [hparams_api.Metric(tag) for tag in _METRICS],
            ),
            hparams_api.hparams_pb(dict(settings)),
        )
        with self._writing(run):
            for summary in summaries:
                tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step=0)
        for tag, text in texts.items():
            self._write_text(TRAINING_RUN, step, tag, text)

    def write_evaluation(self, result: EvaluationResult | TaskResult) -> None:
        """Writes the figures of an evaluation; the log gets its totals too."""
        own = {"result": result.to_dict()}
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
                # TensorBoard keeps the first description.
                is_new = (run, tag) not in self._described
                self._described.add((run, tag))
                description = describe_tag(tag).description if is_new else None
                tf.summary.scalar(tag, min(value, _LARGEST), step=step, description=description)
        if self._metrics_log is not None:
            self._metrics_log.append(step, run, {**figures, **(beside or {})})

    def write_sample(
        self, step: int, text: str, perplexity: float | None = None, run: str = TRAINING_RUN
    ) -> None:
        """Writes a generated text unchanged, with its perplexity if given."""
        block, figures = code_block(text), {}
        if perplexity is not None:
            block = f"Perplexity {perplexity:.4g}\n\n{block}"
            figures["sample/perplexity"] = perplexity
        self._write_text(run, step, "sample", block)
        self.write_figures(step, run, figures, {"sample": text})

    def _write_text(self, run: str, step: int, tag: str, text: str) -> None:
        with self._writing(run):
            tf.summary.text(tag, text, step=step, description=TEXT_TAGS[tag])

    @contextlib.contextmanager
    def _writing(self, run: str) -> Iterator[None]:
        """Writes the summaries of the block into the file of a run, or raises StorageError."""
        what, remedy = "The figures for TensorBoard cannot be written", "Make room or check access."
        with storage_errors(what, self._folder.path, remedy):
            self._folder.check()
            if run not in self._writers:
                path = os.path.join(self._folder.path, run)
                self._writers[run] = tf.summary.create_file_writer(path)
        writer = self._writers[run]
        with this_host():
            with writer.as_default():
                yield
            writer.flush()


def code_block(text: str) -> str:
    """Returns Markdown that shows a text unchanged."""
    return "\n".join("    " + line for line in text.splitlines())


def pages_layout(pages: Sequence[str]) -> layout_pb2.Layout:
    """Returns the layout of the custom-scalars page: a chart for each tag, on its page."""

    def charts(page: str) -> Iterator[layout_pb2.Chart]:
        for tag in TAGS.values():
            if tag.page == page:
                # A regular expression, which matches the tag in all runs.
                pattern = f"^{tag.name}/" if tag.has_parts else f"^{tag.name}$"
                lines = layout_pb2.MultilineChartContent(tag=[pattern])
                yield layout_pb2.Chart(title=tag.name, multiline=lines)

    return layout_pb2.Layout(
        category=[layout_pb2.Category(title=page, chart=charts(page)) for page in pages]
    )
