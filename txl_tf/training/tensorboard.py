"""TensorBoard writer of scalars, text and images."""

import contextlib
import os
from collections.abc import Iterator, Mapping

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.util import event_pb2

from txl_tf import metrics
from txl_tf.distribution.remote_hosts import this_host
from txl_tf.errors import StorageError
from txl_tf.evaluation.result import EvaluationResult
from txl_tf.storage.files import first_line, is_folder, is_remote, list_folder, open_regular_file
from txl_tf.storage.writable_folder import WritableFolder
from txl_tf.training.step_records import LoopReport

# Summaries are float32, and TensorFlow converts no larger number. The word perplexity of a
# text without spaces has hundreds of digits.
_LARGEST = float(tf.float32.max)
_LOSSES = "loss/"
_TRAINING = "train"


def write_images(folder: WritableFolder, run: str, step: int, images: Mapping[str, bytes]) -> None:
    """Writes figures as images of a TensorBoard run of their own.

    Args:
        folder: `WritableFolder` that TensorBoard shows.
        run: str. Name of the run in it.
        step: int. Training steps of the weights.
        images: contents of PNG files, by tag.
    """
    with folder.subfolder(run).reached_by_path() as path:
        writer = tf.summary.create_file_writer(path)
        with writer.as_default():
            for tag, content in images.items():
                tf.summary.image(tag, tf.image.decode_png(content, channels=3)[None], step=step)
        writer.close()


def read_evaluations(folder: str, step: int) -> dict[str, dict[str, float]]:
    """Reads the figures of the first evaluation of each split after a step.

    It is the one of training; later ones may have other settings.

    Args:
        folder: str. Folder that TensorBoard shows.
        step: int. Training steps of the weights.

    Returns:
        Dict of the split to its figures by name, such as `perplexity`, in float32.

    Raises:
        OSError: If the folder cannot be read.
        DataDamagedError: If there is a pipe or a device in it.
    """
    found: dict[str, dict[str, float]] = {}
    for split in list_folder(folder):
        path = os.path.join(folder, split)
        if split == _TRAINING or not is_folder(path):
            continue
        figures: dict[str, float] = {}
        # Their names begin with the time.
        for name in list_folder(path):
            for event in _events(os.path.join(path, name)):
                figures = (_losses(event) if event.step == step else {}) | figures
        if figures:
            found[split] = figures
    return found


def _events(path: str) -> Iterator[event_pb2.Event]:
    """Yields the events of a file up to one that was cut off, as a killed process leaves it."""
    if not is_remote(path):
        open_regular_file(path).close()  # reading a pipe would not end
    with contextlib.suppress(tf.errors.OpError, DecodeError):
        for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
            yield event_pb2.Event.FromString(record)


def _losses(event: event_pb2.Event) -> dict[str, float]:
    return {
        value.tag.removeprefix(_LOSSES): float(tf.make_ndarray(value.tensor))
        for value in event.summary.value
        if value.tag.startswith(_LOSSES)
    }


class TensorBoardWriter:
    """TensorBoard writer with one run for training and one per split.

    The losses have the same tags in all of them, so that TensorBoard draws
    training and evaluation into one picture.

    Args:
        folder: path of the folder that TensorBoard is to show, or the
            `WritableFolder`.
        bytes_per_token: float. Bytes of text per token of the training split.
    """

    def __init__(
        self, folder: str | os.PathLike[str] | WritableFolder, bytes_per_token: float
    ) -> None:
        self._folder = WritableFolder.at(folder)
        self._bytes_per_token = bytes_per_token
        self._paths = contextlib.ExitStack()
        self._writers: dict[str, tf.summary.SummaryWriter] = {}

    def write_training(self, report: LoopReport) -> None:
        """Writes the figures of a loop of steps."""
        self._write_scalars(
            "train",
            report.step,
            {
                "loss/nats_per_token": report.nats_per_token,
                "loss/perplexity": report.perplexity,
                "loss/bits_per_byte": metrics.bits(report.nats_per_token) / self._bytes_per_token,
                "optimizer/learning_rate": report.learning_rate,
                "optimizer/gradient_norm": report.gradient_norm,
                "optimizer/skipped_steps": report.num_skipped_steps,
                "performance/tokens_per_second": report.tokens_per_second,
            },
        )

    def write_evaluation(self, result: EvaluationResult) -> None:
        """Writes the figures of an evaluation."""
        scalars = {
            "loss/nats_per_token": result.nats_per_token,
            "loss/perplexity": result.perplexity,
            "loss/bits_per_byte": result.bits_per_byte,
            "loss/bits_per_character": result.bits_per_character,
            "loss/word_perplexity": result.word_perplexity,
            "performance/evaluation_seconds": result.seconds,
        }
        known = {tag: value for tag, value in scalars.items() if value is not None}
        self._write_scalars(result.split, result.step, known)

    def write_sample(self, step: int, text: str) -> None:
        """Writes a generated text, as it is."""
        # Four spaces make a block of code, which Markdown leaves alone.
        block = "\n".join("    " + line for line in text.splitlines())
        with this_host():
            writer = self._writer("train")
            with writer.as_default():
                tf.summary.text("sample", block, step=step)
            writer.flush()

    def _write_scalars(self, run: str, step: int, scalars: dict[str, float]) -> None:
        with this_host():
            writer = self._writer(run)
            with writer.as_default():
                for tag, value in scalars.items():
                    tf.summary.scalar(tag, min(value, _LARGEST), step=step)
            writer.flush()

    def _writer(self, run: str) -> tf.summary.SummaryWriter:
        try:
            self._folder.check()
            if run not in self._writers:
                # The writer opens its file when it likes, and another one if it finds that gone.
                path = self._paths.enter_context(self._folder.subfolder(run).reached_by_path())
                self._writers[run] = tf.summary.create_file_writer(path)
        except OSError as error:
            raise StorageError(
                f"The figures for TensorBoard cannot be written: {first_line(error)}",
                where=self._folder.path,
                remedy="Make room or check the permissions.",
            ) from error
        return self._writers[run]
