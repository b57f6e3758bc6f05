"""Training run in a folder: `train` is the loop, `TrainingRun` has the calls in it."""

import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Self

import keras
import tensorflow as tf

from txl_tf.config.model import ModelConfig
from txl_tf.distribution.remote_hosts import watched_hosts
from txl_tf.distribution.strategy import is_chief
from txl_tf.errors import DataDamagedError, MismatchError, PreemptedError
from txl_tf.imports import is_on_jax
from txl_tf.model_folder import CHECKPOINTS, RunDescription, Workdir, read_base, write_base
from txl_tf.storage.files import path_exists
from txl_tf.storage.locks import locked_folder
from txl_tf.training.checkpoints.background_saver import BackgroundSaver
from txl_tf.training.checkpoints.checkpoint_store import CheckpointStore
from txl_tf.training.evaluation_history import EvaluationHistory
from txl_tf.training.ledger import LoopReport, StepLedger
from txl_tf.training.trainer import Trainer

from ..shell.progress import TrainingProgress, say
from .precision import with_faster_policy
from .run_figures import RunFigures, profiled_loop
from .start_banner import start_banner
from .training_data import tokens_before_the_end
from .training_job import TrainingJob

_SPLIT = "valid"


def train(job: TrainingJob) -> "TrainingRun":
    """Trains a run to its end; a preemption saves the last step and raises PreemptedError."""
    # Parallel kernels otherwise add in a varying order.
    tf.config.experimental.enable_op_determinism()
    notice = None if job.watcher is None else job.watcher.notice
    with watched_hosts(job.strategy, notice, _end_process), TrainingRun(job) as run:
        run.begin()
        while not run.is_finished:
            if run.trainer.must_stop():
                run.save_and_stop()
            elif run.is_evaluation_due:
                run.evaluate()
            elif loop_report := run.take_steps():
                run.log(loop_report)
            if run.is_checkpoint_due:
                run.save()
        run.finish()
    return run


class TrainingRun:
    """Training run from its start, or from its last checkpoint, to its end.

    A step counts as done when its line is in the ledger. Checkpoints are written in the background;
    lines of later steps wait for the checkpoint before them, so that a kill takes back at most one
    period of checkpoints. Only the first worker writes.
    """

    def __init__(self, job: TrainingJob) -> None:
        data = job.data
        self._is_chief = is_chief(job.strategy)
        self._backend: Any = keras.backend.backend()
        self._saved_step = 0
        self.result: Any = None
        """Last evaluation of the split `valid` by this process, if there was one."""
        with contextlib.ExitStack() as exits:
            # 1. The first worker locks the folder, before anything in it is read.
            workdir = job.workdir
            if self._is_chief:
                workdir = Workdir(exits.enter_context(locked_folder(workdir.folder)))
            # 2. The description is compared with an earlier one, or written.
            description = workdir.check_same(job.experiment, data.identity)
            if description is None:
                experiment = with_faster_policy(job.experiment, job.strategy)
                start = None if job.initial is None else job.initial.start_on(data.identity)
                description = RunDescription(experiment=experiment, data=data.identity, start=start)
                if self._is_chief:
                    description = workdir.begin(
                        experiment, data.identity, start, data.folder, self._backend
                    )
            experiment = job.experiment.with_policy(description.experiment.training.dtype_policy)
            self._job = dataclasses.replace(job, experiment=experiment, workdir=workdir)
            self._description, self._training = description, experiment.training
            if self._is_chief:
                workdir.keep_vocabulary(data.tokenizer.vocabulary_files)
            # 3. The trainer builds model and optimizer with random weights.
            self.trainer = Trainer(
                experiment,
                job.strategy,
                data.reader.dataset_fn,
                data.reader.describe_row,
                data.count_tokens,
                data.objective_class,
            )
            # 4. Checkpoints, ledger and figures write through the locked folder.
            self._history = EvaluationHistory()
            self._store = CheckpointStore(
                workdir.files.subfolder(CHECKPOINTS),
                description.identity(),
                self._training.num_kept_checkpoints,
            )
            self._ledger = StepLedger(workdir.ledger, workdir.files, self._say)
            self._figures = RunFigures(self._job, self.trainer)
            self._saver = exits.enter_context(BackgroundSaver(self._store))
            self._progress = exits.enter_context(
                TrainingProgress(self._training.num_steps, data.describe_loss)
            )
            self._exits = exits.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._exits.__exit__(*error)

    def begin(self) -> None:
        """Restores the newest checkpoint, or assigns the initial weights, and prints a banner."""
        job = self._job
        step = self._load_checkpoint()
        if self._is_chief:
            self._continue_records(step or 0)
        if self.trainer.step < self._training.num_steps:
            self._say(start_banner(job, self._description.start))
            self._say("compiling: the first steps and the first evaluation take longer")
        if job.initial is not None and step is None:
            job.initial.assign_to(self.trainer, job.data, self._say)
            model, frozen = job.experiment.model, self.trainer.state.frozen_weights()
            if self._is_chief and frozen and isinstance(model, ModelConfig):
                write_base(job.workdir.files, model, frozen)
            # After this checkpoint the source is not needed any more.
            self.save()
        if job.watcher is not None:
            job.watcher.call_on_notice(self.trainer.request_stop)

    @property
    def is_finished(self) -> bool:
        """True if no step and no evaluation is left, or evaluations have stopped improving."""
        is_at_end = self.trainer.step == self._training.num_steps
        return self._has_stalled or (is_at_end and not self.is_evaluation_due)

    @property
    def is_evaluation_due(self) -> bool:
        """True if the current step is to be evaluated and has not been."""
        step = self.trainer.step
        if not self._job.data.has_valid or self._history.last_step == step:
            return False
        if step == 0 and self._description.start is None:
            return False
        return step == self._training.num_steps or step % self._training.evaluation_period == 0

    @property
    def is_checkpoint_due(self) -> bool:
        """True if the current step is to be saved and has not been."""
        step = self.trainer.step
        is_last = step == self._training.num_steps
        is_due = is_last or step % self._training.checkpoint_every_steps == 0
        return is_due and step != self._saved_step

    def take_steps(self) -> LoopReport | None:
        """Takes the steps of a loop; `None` if a stop was requested before the first."""
        steps = self._job.profile_steps if self._is_chief else None
        board = self._job.workdir.files.subfolder("tensorboard")
        profiler = profiled_loop(steps, self.trainer, board, self._say)
        with profiler, self._job.data.errors_explained():
            return self.trainer.take_steps()

    def log(self, loop_report: LoopReport) -> None:
        """Notes the steps of a loop in the ledger and in the figures, and shows the progress."""
        self._saver.check()
        self._progress.update(loop_report, self._figures.peak_tokens_per_second)
        if self._is_chief:
            self._ledger.hold(loop_report.records)
            if self._saver.is_idle:
                self._ledger.write()
            # Before the checkpoint: a run that resumes from it does not repeat these figures.
            self._figures.write_training(loop_report)

    def save(self) -> None:
        """Saves the current step, in the background."""
        # Every worker holds a part of the memory, so all must call this.
        arrays = self.trainer.arrays() | self._history.state()
        step = self._saved_step = self.trainer.step
        if self._is_chief:
            self._saver.wait()
            # Lines first: a checkpoint without its lines cannot be resumed.
            self._ledger.write()
            self._ledger.flush_to_disk()
            self._figures.flush_to_disk()
            self._saver.submit(step, arrays, self._ledger.digest)

    def evaluate(self) -> None:
        """Evaluates the split `valid`, and keeps the checkpoint if it is the best."""
        step, data = self.trainer.step, self._job.data
        is_last = step == self._training.num_steps
        evaluator = self.ready_evaluator()

        def evaluated(max_tokens: int | None = None) -> Any:
            with data.errors_explained():
                return data.evaluate(evaluator, step, self._until_stopped, max_tokens)

        # 1. A sample of the split, or the whole, decides which step is the best.
        result = evaluated(self._max_tokens)
        # The first worker's figure decides for all workers.
        own = result.criterion if self._is_chief else 0.0
        is_best = self._history.observe(step, self.trainer.sum_over_workers(own))
        # 2. The last step is also evaluated on the whole split.
        if is_last and result.split != _SPLIT:
            # Final figures cover the whole split; best steps are compared on equal texts.
            self._figures.write_evaluation(result)
            result = evaluated()
        self._figures.write_evaluation(result)
        if self._is_chief:
            self._progress.show_validation(data.describe_short(result))
            self._say(data.describe_result(result, is_last))
        # 3. The best step keeps its checkpoint.
        if is_best:
            self._ensure_checkpoint(step)
            if self._is_chief:
                self._store.keep_best(step)
        # 4. Figures of the memory and a sample of text.
        self._figures.observe(evaluator, step, self._stop_if_requested)
        self.result = result
        if self._has_stalled:
            self._say(
                f"No evaluation was better than at step {self._history.best_step:,}: "
                "training.stop_after_evaluations ends the run."
            )

    def ready_evaluator(self) -> Any:
        """Returns the evaluator of the run's data with the current weights."""
        if not self._evaluator.reads_given_variables:
            self._evaluator.load_arrays(self.trainer.state.inference_weights())
        return self._evaluator

    def save_and_stop(self) -> None:
        """Saves the current step unless it is saved, and raises PreemptedError."""
        step, watcher = self.trainer.step, self._job.watcher
        self._ensure_checkpoint(step)
        reason = watcher.requested if watcher is not None else None
        raise PreemptedError(
            f"Stopped after step {step}: {reason or 'another worker is being stopped'}.",
            where=str(self._job.workdir.folder),
            remedy="The step is saved; run the same command to resume.",
        )

    def finish(self) -> None:
        """Waits for the last checkpoint."""
        if self._has_stalled:
            self._ensure_checkpoint(self.trainer.step)
        self._saver.wait()

    @functools.cached_property
    def _evaluator(self) -> Any:
        job = self._job
        # Each of several workers evaluates the whole split, without waiting for the others. On JAX
        # one device does.
        if self.trainer.num_workers > 1 or (is_on_jax() and job.strategy.num_replicas_in_sync > 1):
            return job.data.create_evaluator(job.experiment)
        variables = self.trainer.state.inference_variables()
        return job.data.create_evaluator(job.experiment, job.strategy, variables)

    @functools.cached_property
    def _max_tokens(self) -> int | None:
        """Limit of evaluations before the last step."""
        num_steps = self._description.identity()["training"]["num_steps"]
        return tokens_before_the_end(self._job.experiment, num_steps)

    @property
    def _has_stalled(self) -> bool:
        return self._history.has_stalled(self._training)

    def _load_checkpoint(self) -> int | None:
        """Restores the newest checkpoint and returns its step, if there is one."""
        step, where = -1, self._job.workdir.checkpoints
        if self._is_chief:
            latest = self._store.load_latest()
            if latest is not None:
                step, arrays, complaints = latest
                for complaint in complaints:
                    self._say(f"A checkpoint is damaged and was passed over: {complaint}")
        # All workers must load the same step, whatever each sees in the folder.
        step = int(self.trainer.sum_over_workers(float(step) if self._is_chief else 0.0))
        if step < 0:
            return None
        if not self._is_chief:
            arrays = self._store.load(step)
        if self._description.experiment.training.adapter_rank is not None:
            self.trainer.state.begin_from(read_base(self._job.workdir.folder))
        try:
            self._history.load_state(arrays)
            self.trainer.load_arrays(arrays)
        except (KeyError, ValueError) as error:
            raise MismatchError(
                f"The checkpoint of step {step} is not of this version of the program: {error}",
                where=where,
                remedy="Use the version that wrote it, or choose a new --workdir.",
            ) from error
        self._saved_step = step
        return step

    def _continue_records(self, step: int) -> None:
        """Cuts ledger and figures off after the checkpoint of a step, and extends the run."""
        job, before = self._job, self._description
        best = None
        # 1. The best checkpoint must be there.
        if step > 0:
            # Fails if the best checkpoint is lost, which nothing could replace.
            best = self._store.best_step(until=step)
        # 2. The ledger keeps its lines up to the step; it may have one period of checkpoints more.
        steps = self._store.steps()
        # Lines of later steps are held back until the next checkpoint is on the disk.
        latest = max(steps, default=0) + before.experiment.training.checkpoint_every_steps
        digest = self._store.ledger_digest(step) if step > 0 else None
        has_ledger = path_exists(job.workdir.ledger)
        self._ledger.resume(step, digest, latest)
        # 3. Only now the description changes: the checks above need the earlier one.
        _require_steps_before(before, self._training.num_steps, step, job.workdir.checkpoints)
        self._description = job.workdir.begin(
            job.experiment,
            job.data.identity,
            data_folder=job.data.folder,
            backend=self._backend,
        )
        # 4. Unfinished files of killed processes go, and figures after the step.
        for complaint in self._store.remove_leftovers():
            self._say(complaint)
        job.workdir.remove_leftovers()
        self._figures.resume(step, self._history.last_step)
        self._figures.write_overview(step)
        # 5. The user is told from where the run continues.
        if step > 0:
            if not has_ledger:
                self._say(f"The ledger file is missing; a new ledger begins at step {step + 1}.")
            if self._history.best_step in steps and self._history.best_step != best:
                self._store.keep_best(self._history.best_step)  # a process was interrupted
            self._progress.begin_at(step)
            self._say(f"Resuming from the checkpoint of step {step}.")
        if self._description.extended_at != before.extended_at:
            end = self._description.extended_at[-1]
            self._say(f"The run is extended from {end} to {self._training.num_steps} steps.")

    def _ensure_checkpoint(self, step: int) -> None:
        self._saver.wait()
        is_saved = self._is_chief and step in self._store.steps()
        if self.trainer.sum_over_workers(float(is_saved)) == 0.0:
            self.save()
            self._saver.wait()

    def _until_stopped(self, batches: Iterable, num_batches: int) -> Iterator:
        for batch in batches:
            self._stop_if_requested()
            yield batch

    def _stop_if_requested(self) -> None:
        # Several workers agree to stop only after an evaluation.
        if self.trainer.num_workers == 1 and self.trainer.must_stop():
            self.save_and_stop()

    def _say(self, text: str) -> None:
        if self._is_chief:
            self._progress.say(text)


def _end_process(addresses: list[str]) -> None:
    """Ends the process with the exit code of a preemption, as TensorFlow may hang or abort."""
    names = ", ".join(addresses[:3])
    more = f" and {len(addresses) - 3} more" if len(addresses) > 3 else ""
    error = PreemptedError(
        "A host of the slice does not answer any more.",
        where=f"{names}{more}",
        remedy="Run the same command to resume once the server of the host runs again.",
    )
    # As the command prints errors.
    say(f"txl: {error}".replace("\n", "\n  "))
    sys.stdout.flush()
    os._exit(error.exit_code)


def _require_steps_before(
    description: RunDescription, num_steps_now: int, step: int, where: str
) -> None:
    """Raises DataDamagedError if an extension began after `step`, the newest readable checkpoint.

    Steps before the extension followed the schedule of a shorter run, which is not known here.
    """
    num_steps = description.experiment.training.num_steps
    is_longer = num_steps_now > num_steps
    extended_at = (*description.extended_at, *([num_steps] if is_longer else ()))
    if extended_at and step < extended_at[-1]:
        raise DataDamagedError(
            f"The run is extended at step {extended_at[-1]}, but its last readable checkpoint is "
            f"of step {step}, before the extension.",
            where=where,
            remedy=f"Finish the run first with --set training.num_steps={num_steps}."
            if is_longer
            else "Restore a later checkpoint from a copy, or choose a new --workdir.",
        )
