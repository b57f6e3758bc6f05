"""Figures, texts and pages of a run for TensorBoard."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from txl_tf.errors import storage_errors
from txl_tf.evaluation.result import EvaluationResult, TaskResult
from txl_tf.imports import tensorflow as tf
from txl_tf.storage.files import list_folder
from txl_tf.storage.writable_folder import WritableFolder
from txl_tf.training.figures import TAGS, TEXT_TAGS, describe_tag, evaluation_figures
from txl_tf.training.metrics_log import TRAINING_RUN, MetricsLog

if TYPE_CHECKING:
    from tensorboard.plugins.custom_scalar import layout_pb2

# Summaries are float32, and TensorFlow refuses larger numbers. The word perplexity of a text
# without spaces has hundreds of digits.
_LARGEST = float(np.finfo(np.float32).max)


class TensorBoardWriter:
    """TensorBoard writer with one run for training and one per split; see `TAGS`.

    A resumed run repeats steps. Figures that an earlier process has written for a step are not
    written again. `metrics_log` gets the same values.
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
        # By default, TensorBoard takes runs with equal settings for one trial and averages their
        # figures.
        trial_id = f"{os.path.basename(os.path.dirname(path))} in {path}"
        summaries = (
            custom_scalars.pb(pages_layout(pages)),
            # Without a list of the settings, TensorBoard finds out their types and which differ.
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
        """Writes figures by tag; `beside` has further values for the log only."""
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
    """Reads the tags and steps of all summaries in a folder, and of a file up to a cut record."""
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
