"""Training and evaluation of one ablation run in the current process."""

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from txl_tf.config.experiment import EvaluationConfig, ExperimentConfig
from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.distribution.preemption import PreemptionWatcher
from txl_tf.distribution.strategy import create_strategy
from txl_tf.errors import PreemptedError
from txl_tf.evaluation.result import MeasuredLoss
from txl_tf.evaluation.text_rows import EvaluationText
from txl_tf.run_folder import read_weights
from txl_tf.storage.locks import DirectoryLock
from txl_tf.storage.writable_folder import WritableFolder

from ..evaluation.splits import create_evaluator, split_text
from ..training_data import TrainingData
from ..training_run import TrainingRun
from ..workdir import Workdir, data_identity
from .ablation_runs import AblationResult
from .ablation_study import AblationRun, AttentionLength

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
        else:
            evaluation = EvaluationConfig(
                batch_size=experiment.evaluation.batch_size,
                segment_length=length.segment_length,
                window_stride_tokens=length.stride,
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
