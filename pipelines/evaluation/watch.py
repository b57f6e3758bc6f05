"""Evaluation of each checkpoint of a run as it appears."""

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from pipelines.evaluation.evaluation_log import EvaluationLog
from pipelines.tensorboard_folder import tensorboard_folder
from pipelines.workdir import Workdir
from txl_tf.distribution.preemption import PreemptionWatcher
from txl_tf.errors import DataDamagedError, PreemptedError
from txl_tf.evaluation.result import EvaluationResult
from txl_tf.evaluation.text_rows import EvaluationBatch
from txl_tf.run_folder import checkpoint_store, read_weights
from txl_tf.training.tensorboard import TensorBoardWriter

_POLL_SECONDS = 2.0


class CheckpointWatch:
    """Iterator over the steps of new checkpoints, until the run is finished.

    Args:
        list_steps: function without arguments that returns the steps of the
            checkpoints that are there, oldest first.
        last_step: int. The step after which the run has no more.
        patience_seconds: optional float. How long to wait for the next one.
            Defaults to `None`: for ever.
        poll_seconds: float. Time between two looks. Defaults to `2.0`.
    """

    def __init__(
        self,
        list_steps: Callable[[], list[int]],
        last_step: int,
        patience_seconds: float | None = None,
        *,
        poll_seconds: float = _POLL_SECONDS,
    ) -> None:
        self._list_steps = list_steps
        self._last_step = last_step
        self._patience_seconds = patience_seconds
        self._poll_seconds = poll_seconds
        self._stop = threading.Event()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Ends the waiting; may be called from any thread."""
        self._stop.set()

    def steps(self, done: Collection[int]) -> Iterator[int]:
        """Returns the steps to evaluate.

        Args:
            done: steps that need no evaluation, to which the caller adds the
                ones it has been given.

        Yields:
            The oldest step that is there and not done. It ends after the last
            step of the run, when `stop` was called, and when no new checkpoint
            came for too long.
        """
        passed_over: set[int] = set()
        deadline = self._new_deadline()
        while not self.is_stopped:
            there = [step for step in self._list_steps() if step not in passed_over]
            step = next((step for step in there if step not in done), None)
            if step is not None:
                yield step
                # Whatever became of it, once is enough.
                passed_over.add(step)
                deadline = self._new_deadline()
                continue
            is_finished = self._last_step in done or self._last_step in passed_over
            if is_finished or time.monotonic() >= deadline:
                return
            self._stop.wait(min(self._poll_seconds, deadline - time.monotonic()))

    def _new_deadline(self) -> float:
        if self._patience_seconds is None:
            return float("inf")
        return time.monotonic() + self._patience_seconds


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
    store = checkpoint_store(workdir.folder)
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
                _, weights = read_weights(workdir.folder, step)
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
