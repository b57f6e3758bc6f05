"""TensorBoard writer of scalars, text, hyperparameters and the layout of its pages."""

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import summary as custom_scalars
from tensorboard.plugins.hparams import api as hparams_api

from txl_tf.distribution.remote_hosts import this_host
from txl_tf.errors import StorageError
from txl_tf.evaluation.result import EvaluationResult, TaskResult
from txl_tf.storage.files import first_line
from txl_tf.storage.writable_folder import WritableFolder
from txl_tf.training.metrics import (
    PAGES,
    TAGS,
    TASK_PAGES,
    TEXT_TAGS,
    TRAINING_RUN,
    MetricsLog,
    describe_tag,
    evaluation_figures,
    training_figures,
)
from txl_tf.training.step_report import LoopReport

# Summaries are float32, and TensorFlow refuses larger numbers. The word perplexity of a text
# without spaces has hundreds of digits.
_LARGEST = float(tf.float32.max)
_METRICS = ("loss/perplexity", "loss/bits_per_byte", "loss/nats_per_token")


class TensorBoardWriter:
    """TensorBoard writer with one run for training and one per split.

    The losses have the same tags in all runs, so that TensorBoard draws them in one chart;
    `txl_tf.training.metrics` lists all tags. `bytes_per_token`, of the training split, is `None`
    for a task. `metrics_log` gets the same values. `has_peak` is true if training writes a share
    of the peak of its devices.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | WritableFolder,
        bytes_per_token: float | None,
        metrics_log: MetricsLog | None = None,
        has_peak: bool = False,
    ) -> None:
        self._folder = WritableFolder.at(folder)
        self._bytes_per_token = bytes_per_token
        self._metrics_log = metrics_log
        self._has_peak = has_peak
        self._paths = contextlib.ExitStack()
        self._writers: dict[str, tf.summary.SummaryWriter] = {}
        self._described: set[tuple[str, str]] = set()

    def write_overview(
        self, step: int, run: str, settings: Mapping[str, Any], texts: Mapping[str, str]
    ) -> None:
        """Writes the pages, hyperparameters and texts, Markdown by a tag of `TEXT_TAGS`.

        `step` counts the steps done when the process started. The losses of `run` are the metrics
        of the hyperparameters, which are `settings`.
        """
        metrics = [hparams_api.Metric(tag, display_name=TAGS[tag].title) for tag in _METRICS]
        names = [hparams_api.HParam(name) for name in settings]
        summaries = (
            custom_scalars.pb(pages_layout(self._has_peak, self._bytes_per_token is None)),
            hparams_api.hparams_config_pb(names, metrics),
            hparams_api.hparams_pb(dict(settings)),
        )
        with this_host():
            writer = self._writer(run)
            with writer.as_default():
                for summary in summaries:
                    tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step=0)
            writer.flush()
        for tag, text in texts.items():
            self._write_text(TRAINING_RUN, step, tag, text)

    def write_training(
        self, report: LoopReport, peak_tokens_per_second: float | None = None
    ) -> None:
        """Writes the figures of a loop of steps; see `training_figures`."""
        figures = training_figures(report, self._bytes_per_token, peak_tokens_per_second)
        self.write_figures(report.step, TRAINING_RUN, figures)

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
        with this_host():
            writer = self._writer(run)
            with writer.as_default():
                for tag, value in figures.items():
                    # TensorBoard keeps the first description.
                    is_new = (run, tag) not in self._described
                    self._described.add((run, tag))
                    description = describe_tag(tag).description if is_new else None
                    value = min(value, _LARGEST)
                    tf.summary.scalar(tag, value, step=step, description=description)
            writer.flush()
        if self._metrics_log is not None:
            self._metrics_log.append(step, run, {**figures, **(beside or {})})

    def write_sample(
        self, step: int, text: str, perplexity: float | None = None, run: str = TRAINING_RUN
    ) -> None:
        """Writes a generated text unchanged, with its perplexity if given."""
        # Four spaces make a block of code, which Markdown does not format.
        block = "\n".join("    " + line for line in text.splitlines())
        if perplexity is not None:
            block = f"Perplexity {perplexity:.4g}\n\n{block}"
        self._write_text(run, step, "sample", block)
        figures = {} if perplexity is None else {"sample/perplexity": perplexity}
        self.write_figures(step, run, figures, {"sample": text})

    def _write_text(self, run: str, step: int, tag: str, text: str) -> None:
        with this_host():
            writer = self._writer(run)
            with writer.as_default():
                tf.summary.text(tag, text, step=step, description=TEXT_TAGS[tag])
            writer.flush()

    def _writer(self, run: str) -> tf.summary.SummaryWriter:
        try:
            self._folder.check()
            if run not in self._writers:
                # The writer opens its file late, and opens another if that file is gone.
                path = self._paths.enter_context(self._folder.subfolder(run).reached_by_path())
                self._writers[run] = tf.summary.create_file_writer(path)
        except OSError as error:
            raise StorageError(
                f"The figures for TensorBoard cannot be written: {first_line(error)}",
                where=self._folder.path,
                remedy="Make room or check the permissions.",
            ) from error
        return self._writers[run]


def pages_layout(has_peak: bool, has_task: bool = False) -> layout_pb2.Layout:
    """Returns the layout of the custom-scalars page: a chart for each tag, on its page."""
    pages = TASK_PAGES if has_task else PAGES
    return layout_pb2.Layout(
        category=[layout_pb2.Category(title=page, chart=_charts(page, has_peak)) for page in pages]
    )


def _charts(page: str, has_peak: bool) -> Iterable[layout_pb2.Chart]:
    for tag in TAGS.values():
        if tag.page == page and (has_peak or tag.name != "performance/peak_share"):
            # A regular expression, which matches the tag in all runs.
            pattern = f"^{tag.name}/" if tag.has_parts else f"^{tag.name}$"
            lines = layout_pb2.MultilineChartContent(tag=[pattern])
            yield layout_pb2.Chart(title=tag.title, multiline=lines)
