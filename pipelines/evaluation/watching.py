"""Evaluates each checkpoint of a run as it appears: `txl evaluate --watch`."""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pipelines.evaluation.checkpoint_watch import CheckpointWatch
from pipelines.evaluation.evaluation_log import EvaluationLog
from pipelines.tensorboard_folder import tensorboard_folder
from pipelines.trained_model import checkpoint_store, read_weights
from pipelines.workdir import Workdir
from txl_tf.distribution.preemption_watcher import PreemptionWatcher
from txl_tf.errors import DataDamagedError, PreemptedError
from txl_tf.evaluation.evaluation_batch import EvaluationBatch
from txl_tf.evaluation.evaluation_result import EvaluationResult
from txl_tf.training.tensorboard_writer import TensorBoardWriter

EvaluateStep = Callable[..., EvaluationResult]


def watch_checkpoints(
    workdir: Workdir,
    split: str,
    conditions: dict[str, Any],
    evaluate: EvaluateStep,
    report: Callable[[EvaluationResult], None],
    patience_seconds: float | None,
) -> None:
    """Evaluates checkpoints until the run is finished.

    What was evaluated is written into the folder of the run, so that the same
    command goes on where it stopped.

    Args:
        workdir: `Workdir`.
        split: str. Name of the split.
        conditions: dict of JSON values that decide a result besides the step.
        evaluate: function of a step, weights and `track`, see
            `Evaluator.evaluate`, that returns an `EvaluationResult`.
        report: function that is called with every result.
        patience_seconds: optional float. How long to wait for a checkpoint.

    Raises:
        PreemptedError: If the process is asked to stop.
        OutputExistsError: If another process does the same, or the run was
            removed or replaced meanwhile.
        JobError: If a checkpoint cannot be read or evaluated.
    """
    experiment, _ = workdir.read()
    store = checkpoint_store(workdir)
    watch = CheckpointWatch(store.steps, experiment.training.num_steps, patience_seconds)
    log = EvaluationLog(workdir.evaluations, split, conditions)

    def until_stopped(batches: Iterable[EvaluationBatch], _: int) -> Iterator[EvaluationBatch]:
        for batch in batches:
            _check(watch, watcher)
            yield batch

    with log.locked() as lock, PreemptionWatcher(watch.stop) as watcher:
        board = TensorBoardWriter(tensorboard_folder(workdir, lock.check), 1.0)
        for step in watch.steps(log.steps):
            try:
                _, weights = read_weights(workdir, step)
            except DataDamagedError as error:
                if step in store.steps():
                    raise
                # The run has removed it for newer ones while it was read.
                print(f"passed over: {error.where} is gone", file=sys.stderr)
                continue
            result = evaluate(step, weights, until_stopped)
            board.write_evaluation(result)
            log.append(result)
            report(result)
        _check(watch, watcher)
    if experiment.training.num_steps not in log.steps:
        print(f"no new checkpoint for {patience_seconds:g} seconds", file=sys.stderr)


def _check(watch: CheckpointWatch, watcher: PreemptionWatcher) -> None:
    if watch.is_stopped:
        raise PreemptedError(
            f"Stopped: {watcher.requested}.",
            where="--watch",
            remedy="The same command goes on with the checkpoints that are not evaluated yet.",
        )
