"""Training and evaluation of one ablation run in the current process.

Shape letters used in this module: B windows, A window length, S stride.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from pipelines.analysis.ablation_runs import AblationResult
from pipelines.analysis.ablation_study import AblationRun, AttentionLength
from pipelines.evaluation.splits import create_evaluator, split_text
from pipelines.training_data import TrainingData
from pipelines.training_run import TrainingRun
from pipelines.workdir import Workdir, data_identity
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.distribution.preemption import PreemptionWatcher
from txl_tf.distribution.strategy import create_strategy
from txl_tf.errors import NonFiniteError, PreemptedError
from txl_tf.evaluation.result import MeasuredLoss
from txl_tf.evaluation.text_rows import EvaluationText
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.run_folder import build_model, read_weights
from txl_tf.storage.locks import DirectoryLock
from txl_tf.storage.writable_folder import WritableFolder

Track = Callable[[Iterable, int], Iterable]
RUN_FOLDER = "run"
"""Name of the workdir of the training run in the folder of the ablation run."""


class AblationWorker:
    """Training and evaluation of one ablation run, from its last checkpoint on.

    Training makes an ordinary run, which `txl train` can resume. Results are
    kept after every attention length.

    Args:
        run: `AblationRun`.
        data_folder: str. A prepared data set.
        folder: path of the study.
        watcher: `PreemptionWatcher`, already watching.
    """

    def __init__(
        self, run: AblationRun, data_folder: str, folder: Path, watcher: PreemptionWatcher
    ) -> None:
        self._run = run
        self._data_folder = data_folder
        self._folder = folder
        self._watcher = watcher
        self._workdir = Workdir(str(folder / run.name / RUN_FOLDER))

    def run(self) -> AblationResult:
        """Trains to the end and evaluates at all attention lengths.

        Raises:
            PreemptedError: If the machine is being taken away.
            MismatchError: If something else was begun here.
            OutputExistsError: If another process has the run, or has begun it
                anew meanwhile.
        """
        with DirectoryLock(self._folder / self._run.name) as lock:
            return self._finish(lock.folder)

    def _finish(self, writable: WritableFolder) -> AblationResult:
        dataset = PreparedDataset.open(self._data_folder)
        result = AblationResult.read(self._folder, self._run, data_identity(dataset.manifest))
        missing = result.missing(self._run)
        if not missing:
            return result
        self._train()
        step, weights = read_weights(self._workdir.folder)
        text = self._text(dataset)
        for length in missing:
            result.figures[length] = self._evaluate(length, step, weights, text)
            result.write(self._folder, self._run, writable)
            print(f"attention length {length.length}: {result.figures[length].describe()}")
        return result

    def _train(self) -> None:
        # Without it, sums in parallel kernels may come out in another order.
        tf.config.experimental.enable_op_determinism()
        experiment = self._run.experiment
        data = _StudyData(self._data_folder, experiment)
        strategy = create_strategy(None, 1)
        with TrainingRun(experiment, data, self._workdir, strategy, self._watcher) as training_run:
            training_run.train()

    def _text(self, dataset: PreparedDataset) -> EvaluationText:
        text = split_text(dataset, self._run.evaluation.split)
        num_tokens = min(self._run.evaluation.num_tokens or text.num_tokens, text.num_tokens)
        share = num_tokens / text.num_tokens
        return dataclasses.replace(
            text,
            num_tokens=num_tokens,
            num_bytes=round(text.num_bytes * share),
            num_characters=round(text.num_characters * share),
            num_words=round(text.num_words * share),
        )

    def _evaluate(
        self,
        length: AttentionLength,
        step: int,
        weights: dict[str, np.ndarray],
        text: EvaluationText,
    ) -> MeasuredLoss:
        experiment = self._run.experiment
        if length.stride is None:
            evaluation = experiment.evaluation.replace(
                segment_length=length.segment_length,
                memory_length=length.memory_length,
                same_length=length.same_length,
            )
            evaluator = create_evaluator(experiment.replace(evaluation=evaluation))
            evaluator.load_arrays(weights)
            result = evaluator.evaluate(text, step=step, track=self._until_stopped)
            return MeasuredLoss(
                total_nats=result.total_nats,
                num_tokens=result.num_tokens,
                num_bytes=result.num_bytes,
                seconds=result.seconds,
            )
        return evaluate_windows(
            build_model(experiment.model, weights),
            text,
            window_length=length.segment_length,
            stride=length.stride,
            batch_size=experiment.evaluation.batch_size,
            jit_compile=experiment.training.jit_compile,
            track=self._until_stopped,
        )

    def _until_stopped(self, batches: Iterable, num_batches: int) -> Iterator:
        for batch in batches:
            if self._watcher.requested is not None:
                raise PreemptedError(
                    f"Stopped while evaluating {self._run.name}: {self._watcher.requested}.",
                    where=str(self._folder / self._run.name),
                    remedy="Run the same command to resume.",
                )
            yield batch


class _StudyData(TrainingData):
    """Training data that reads the split `valid` only for evaluations during the run."""

    def __init__(self, folder: str, experiment: ExperimentConfig) -> None:
        super().__init__(folder, experiment)
        self._evaluates = experiment.training.evaluate_every_steps is not None

    @property
    def has_valid(self) -> bool:
        return self._evaluates and super().has_valid


class WindowBatch(NamedTuple):
    """Batch of windows with the targets that are scored in each."""

    token_ids: np.ndarray
    """int32 `(B, A)`."""
    first_scored: np.ndarray
    """int32 `(B,)`. The first position that is scored."""
    target_ids: np.ndarray
    """int32 `(B, S)`. The targets from there on."""
    is_scored: np.ndarray
    """bool `(B, S)`."""


def window_batches(
    text: EvaluationText, window_length: int, stride: int, batch_size: int
) -> Iterator[WindowBatch]:
    """Cuts a text into windows so that every target is scored exactly once.

    Windows move on by `stride` tokens and score their last ones. The first
    windows begin at the beginning of the text and the last end at its end,
    so all of them are full.

    Args:
        text: `EvaluationText` of more than `window_length` tokens; a shorter
            one is a ValueError.
        window_length: int. `A`.
        stride: int. `S`.
        batch_size: int. `B`. The last batch is padded with windows that score
            nothing.
    """
    num_targets = text.num_tokens - 1
    if num_targets < window_length:
        raise ValueError(
            "A text must be longer than a window. "
            f"Received: num_tokens={text.num_tokens}, window_length={window_length}"
        )
    firsts = np.arange(0, num_targets, stride)
    for begin in range(0, len(firsts), batch_size):
        batch = WindowBatch(
            np.zeros((batch_size, window_length), np.int32),
            np.zeros(batch_size, np.int32),
            np.zeros((batch_size, stride), np.int32),
            np.zeros((batch_size, stride), bool),
        )
        for row, first in enumerate(firsts[begin : begin + batch_size].tolist()):
            # The last position that is scored is the last one of the window, where there is room.
            start = min(max(first + stride - window_length, 0), num_targets - window_length)
            tokens = text.read_tokens(start, start + window_length + 1)
            count = min(stride, num_targets - first)
            offset = first - start
            batch.token_ids[row] = tokens[:-1]
            batch.first_scored[row] = offset
            batch.target_ids[row, :count] = tokens[offset + 1 : offset + count + 1]
            batch.is_scored[row, :count] = True
        yield batch


def evaluate_windows(
    model: TransformerXL,
    text: EvaluationText,
    *,
    window_length: int,
    stride: int,
    batch_size: int,
    jit_compile: bool = True,
    track: Track | None = None,
) -> MeasuredLoss:
    """Scores every token of a text with a sliding window of preceding tokens.

    Every token but the first ones of the text is predicted from
    `window_length - stride + 1` to `window_length` tokens. That is how Dai et
    al. (2019) evaluate models without recurrence, and Al-Rfou et al. (2019)
    with a stride of 1.

    Args:
        model: `TransformerXL` without recurrence.
        text: `EvaluationText`.
        window_length: int. `A`.
        stride: int. `S`, at most `A`.
        batch_size: int. Windows that are computed side by side.
        jit_compile: bool. Whether the step is compiled with XLA.
        track: optional function, see `Evaluator.evaluate`.

    Raises:
        NonFiniteError: If the total is not finite.
        ValueError: If the text is shorter than a window.
    """
    begin = time.perf_counter()
    num_targets = text.num_tokens - 1
    score = tf.function(_scorer(model, batch_size), jit_compile=jit_compile, autograph=False)
    batches: Iterable[WindowBatch] = window_batches(text, window_length, stride, batch_size)
    if track is not None:
        batches = track(batches, math.ceil(num_targets / (stride * batch_size)))
    total_nats = 0.0
    for batch in batches:
        total_nats += float(score(*map(tf.constant, batch)))
    if not np.isfinite(total_nats):
        raise NonFiniteError(
            f"The loss of the split {text.name} is not finite: {total_nats}.",
            where=f"windows of {window_length} tokens",
            remedy="Train with a lower learning rate.",
        )
    return MeasuredLoss(
        total_nats=total_nats,
        num_tokens=num_targets,
        num_bytes=text.num_bytes * num_targets / text.num_tokens,
        seconds=time.perf_counter() - begin,
    )


def _scorer(model: TransformerXL, batch_size: int) -> Callable[..., tf.Tensor]:
    memory = model.initial_memory(batch_size, 0)

    def score(
        token_ids: tf.Tensor, first_scored: tf.Tensor, target_ids: tf.Tensor, is_scored: tf.Tensor
    ) -> tf.Tensor:
        hidden, _ = model(token_ids, memory)  # [B, A, D]
        # Past the end where there is nothing to score; the last position stands in for it.
        positions = first_scored[:, None] + tf.range(target_ids.shape[1])[None]
        positions = tf.minimum(positions, token_ids.shape[1] - 1)
        hidden = tf.gather(hidden, positions, batch_dims=1)  # [B, S, D]
        nll = tf.cast(model.negative_log_likelihood(hidden, target_ids), tf.float64)
        return tf.reduce_sum(tf.where(is_scored, nll, tf.zeros([], tf.float64)))

    return score
