"""Training run in a folder: resume, loops, evaluations, checkpoints, stops."""

import contextlib
import functools
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any, Self

import tensorflow as tf

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import ModelConfig
from txl_tf.distribution.preemption import PreemptionWatcher
from txl_tf.distribution.strategy import is_chief
from txl_tf.errors import MismatchError, PreemptedError, StorageError
from txl_tf.model_folder import read_base, write_base
from txl_tf.storage.files import path_exists
from txl_tf.storage.writable_folder import WritableFolder
from txl_tf.training.checkpoint_store import BackgroundSaver, CheckpointStore
from txl_tf.training.ledger import LoopReport, StepLedger
from txl_tf.training.metrics import RunClock
from txl_tf.training.train_state import EvaluationHistory
from txl_tf.training.trainer import Trainer

from .evaluation import tokens_before_the_end
from .initial_weights import InitialWeights
from .progress import TrainingProgress
from .run_banner import start_banner
from .run_data import RunData, require_split_of_rate
from .run_verification import (
    describe_extension,
    latest_explained_step,
    require_checkpoints,
    require_steps_before,
)
from .step_profile import StepProfile
from .training_figures import RunFigures
from .workdir import Workdir

_SPLIT = "valid"


class TrainingRun:
    """Training run from its start, or from its last checkpoint, to its end.

    A step counts as done when its line is in the ledger. Checkpoints are written in the background;
    lines of later steps wait for the checkpoint before them, so that a kill takes back at most one
    period of checkpoints. Only the first worker writes. `profile_steps` are counted from 1.
    """

    def __init__(
        self,
        experiment: ExperimentConfig,
        data: RunData,
        workdir: Workdir,
        strategy: tf.distribute.Strategy,
        watcher: PreemptionWatcher | None = None,
        profile_steps: range | None = None,
        initial: InitialWeights | None = None,
        clock: RunClock | None = None,
    ) -> None:
        self._initial = initial
        self._experiment = experiment
        self._data = data
        self._workdir = workdir
        self._watcher = watcher
        self._is_chief = is_chief(strategy)
        self._exits = contextlib.ExitStack()
        self._strategy = strategy
        self._profile_steps = profile_steps
        self._clock = clock or RunClock()
        self._has_told_limit = False
        require_split_of_rate(experiment, data)

    def __enter__(self) -> Self:
        experiment, workdir = self._experiment, self._workdir
        with contextlib.ExitStack() as exits:
            folder, run_id = WritableFolder.at(workdir.folder), None
            own = experiment, self._data.identity
            start, place = None, self._data.folder
            if self._initial is not None and not workdir.has_run():
                start = self._initial.start_of(self._data.identity)
            if self._is_chief:
                folder = exits.enter_context(workdir.lock()).folder
                self._described = workdir.take_up(*own, folder, start, place)
                run_id = self._described.run_id
                workdir.keep_vocabulary(self._data.vocabulary_files, folder)
            else:
                self._described = workdir.take_up(*own, None, start)
            self._folder = folder
            training = experiment.training
            self.trainer = Trainer(
                experiment,
                self._strategy,
                self._data.reader.dataset_fn,
                self._data.reader.describe_row,
                self._data.count_tokens,
                self._data.objective_class,
            )
            self._history = EvaluationHistory(*self.trainer.evaluation_observers)
            self._store = CheckpointStore(
                folder.subfolder(os.path.basename(workdir.checkpoints)),
                self._described.identity(),
                training.num_kept_checkpoints,
                run_id,
            )
            self._ledger = StepLedger(workdir.ledger, folder, self._say)
            run = experiment, self._data, self.trainer, workdir, folder, self._strategy
            self._figures = RunFigures(*run, self._say, self._clock)
            self._saver = exits.enter_context(BackgroundSaver(self._store))
            self._progress = exits.enter_context(
                TrainingProgress(training.num_steps, self._data.describe_loss)
            )
            steps = self._profile_steps if self._is_chief else None
            board = folder.subfolder(os.path.basename(workdir.tensorboard))
            self._profile = exits.enter_context(StepProfile(steps, board, self._say))
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._exits.__exit__(*error)

    @functools.cached_property
    def evaluator(self) -> Any:
        """Evaluator of the run's data, built on first use."""
        # Each of several workers evaluates the whole split, without waiting for the others.
        if self.trainer.num_workers > 1:
            return self._data.create_evaluator(self._experiment)
        variables = self.trainer.inference_variables()
        return self._data.create_evaluator(self._experiment, self._strategy, variables)

    def ready_evaluator(self) -> Any:
        """Returns the evaluator with the current weights."""
        if not self.evaluator.reads_given_variables:
            self.evaluator.load_arrays(self.trainer.inference_weights())
        return self.evaluator

    def train(self) -> Any:
        """Trains to the end, and returns the last result on the split `valid`.

        `None` without such a split, or if nothing was left to do. A preemption saves the last step
        and raises PreemptedError.
        """
        has_checkpoint = self._resume()
        if self.trainer.step < self._experiment.training.num_steps:
            run = self._data, self._strategy, self._workdir, self._described.start
            self._say(start_banner(self._experiment, *run))
        if self._initial is not None and not has_checkpoint:
            for line in self._initial.assign_to(self.trainer, self._data):
                self._say(line)
            if self._is_chief:
                model, frozen = self._experiment.model, self.trainer.frozen_weights()
                if frozen and isinstance(model, ModelConfig):  # only this model has adapters
                    write_base(self._folder, model, frozen)
            # After this checkpoint the source is not needed any more.
            self._save()
        if self._watcher is not None:
            self._watcher.call_on_notice(self.trainer.request_stop)
        with self._data.errors_explained():
            result = self._train_to_end()
        if self._has_stalled:
            self._ensure_checkpoint(self.trainer.step)
        elif self.trainer.step < self._experiment.training.num_steps:
            self._stop()
        self._saver.wait()
        self._note_first_checkpoint()
        if self._is_chief:
            self._figures.write_end(self.trainer.step)
        return result

    def _train_to_end(self) -> Any:
        """Runs the remaining loops, and returns their last evaluation."""
        result = self._evaluate_if_due()
        trainer, num_steps = self.trainer, self._experiment.training.num_steps
        while not self._has_stalled and trainer.step < num_steps and not trainer.must_stop():
            self._profile.before_loop(trainer)
            report = trainer.take_steps(measures_updates=True)
            if report is None:
                continue
            self._profile.after_loop(report.step)
            self._after_loop(report)
            result = self._evaluate_if_due() or result
            if self._has_stalled:
                what = f"No evaluation was better than that of step {self._history.best_step:,}"
                self._say(f"{what}: training.stop_after_evaluations ends the run.")
        return result

    @property
    def _has_stalled(self) -> bool:
        return self._history.has_stalled(self._experiment.training)

    def _note_best(self, step: int) -> None:
        """Repairs the note of the best checkpoint after an interrupted process."""
        best = self._history.best_step
        if best in self._store.steps() and best != self._store.best_step(until=step):
            self._store.keep_best(best)

    def _resume(self) -> bool:
        """Restores the newest checkpoint; returns true if there is one."""
        if self._is_chief:
            require_checkpoints(self._workdir, self._described, self._store.steps())
        loaded = self._load_checkpoint()
        if not self._is_chief:
            return loaded is not None
        step = loaded or 0
        if step > 0:
            # Fails if the best checkpoint is lost, which nothing could replace.
            self._store.best_step(until=step)
        latest = latest_explained_step(self._described, self._store.steps())
        digest = self._store.ledger_digest(step) if step > 0 else None
        has_ledger = path_exists(self._workdir.ledger)
        self._ledger.resume(step, digest, latest)
        # Only now: the checks above need the earlier description.
        data, before = self._data.identity, self._described
        require_steps_before(before, self._experiment, step, self._workdir.checkpoints)
        self._described = self._workdir.begin(
            self._experiment, data, self._folder, before.run_id, data_folder=self._data.folder
        )
        for complaint in self._store.remove_leftovers():
            self._say(complaint)
        self._workdir.remove_leftovers(self._folder)
        self._figures.resume(step, self._history.last_step)
        self._figures.write_overview(step)
        if step > 0:
            if not has_ledger:
                self._say(f"The ledger is gone; a new one begins at step {step + 1}.")
            self._workdir.note_checkpoint(step, self._folder)
            self._note_best(step)
            self._progress.begin_at(step)
            self._say(f"Going on from the checkpoint of step {step}.")
        if self._described.extended_at != before.extended_at:
            self._say(describe_extension(self._experiment, self._described.extended_at[-1]))
        return loaded is not None

    def _load_checkpoint(self) -> int | None:
        step = -1.0
        if self._is_chief:
            latest = self._store.load_latest()
            if latest is not None:
                step, arrays, complaints = latest
                for complaint in complaints:
                    self._say(f"A checkpoint is damaged and was passed over: {complaint}")
        # All workers must load the same step, whatever each sees in the folder.
        chosen = int(self.trainer.sum_over_workers(float(step) if self._is_chief else 0.0))
        if chosen < 0:
            return None
        if not self._is_chief:
            arrays = self._store.load(chosen)
        if self._described.experiment.training.adapter_rank is not None:
            self.trainer.begin_from(read_base(self._workdir.folder, self._described))
        own_names = self._history.state().keys()
        own = {name: arrays.pop(name) for name in own_names & arrays.keys()}
        try:
            self._history.load_state(own)
            self.trainer.load_state(arrays)
        except ValueError as error:
            raise MismatchError(
                f"The checkpoint of step {chosen} is not of this version of the program: {error}",
                where=self._workdir.checkpoints,
                remedy="Use the version that wrote it, or choose a new --workdir.",
            ) from error
        return chosen

    def _after_loop(self, report: LoopReport) -> None:
        self._saver.check()
        self._progress.update(report, self._figures.peak_tokens_per_second)
        self._note_steps(report)
        # Before the checkpoint: a run that resumes from it does not repeat these figures.
        self._figures.write_training(report)
        training = self._experiment.training
        is_last = report.step == training.num_steps
        if is_last or report.step % training.checkpoint_every_steps == 0:
            self._save()

    def _note_steps(self, report: LoopReport) -> None:
        if not self._is_chief:
            return
        self._ledger.hold(report.records)
        if self._saver.is_idle:
            self._write_held_lines()

    def _note_first_checkpoint(self) -> None:
        """Notes the first checkpoint before any ledger line of a later step is written."""
        step = self._saver.saved_step if self._is_chief else None
        if step is not None and self._described.first_checkpoint_step is None:
            self._workdir.note_checkpoint(step, self._folder)
            self._described = self._described.replace(first_checkpoint_step=step)

    def _write_held_lines(self) -> None:
        self._note_first_checkpoint()
        self._ledger.write()

    def _save(self) -> None:
        begin = time.perf_counter()
        # Every worker holds a part of the memory, so all must call this.
        arrays = self.trainer.state() | self._history.state()
        if self._is_chief:
            self._saver.wait()
            # Lines first: a checkpoint without its lines cannot be resumed.
            self._write_held_lines()
            self._ledger.flush_to_disk()
            self._figures.flush_to_disk()
            self._saver.submit(self.trainer.step, arrays, self._ledger.digest)
            self._figures.write_checkpoint(self.trainer.step, time.perf_counter() - begin)

    def _evaluate_if_due(self) -> Any:
        step, training = self.trainer.step, self._experiment.training
        is_due = step == training.num_steps or step % training.evaluation_period == 0
        is_initial = step == 0 and self._described.start is None
        if is_initial or not is_due or self._history.last_step == step or not self._data.has_valid:
            return None
        if self.trainer.must_stop():
            # Also after the last step, whose evaluation is part of the run.
            self._stop()
        evaluator = self.ready_evaluator()
        is_last = step == training.num_steps
        result = self._data.evaluate(evaluator, step, self._until_stopped, **self._limit)
        is_whole = result.split == _SPLIT
        # The first worker's figure decides for all workers.
        own = result.criterion if self._is_chief else 0.0
        is_best = self._history.observe(step, self.trainer.sum_over_workers(own))
        if is_last and not is_whole:
            # Final figures cover the whole split; best steps are compared on equal texts.
            self._figures.write_evaluation(result)
            result = self._data.evaluate(evaluator, step, self._until_stopped)
        self._figures.write_evaluation(result)
        if self._is_chief:
            self._progress.show_validation(self._data.describe_short(result))
            self._say(self._data.describe_result(result, is_last))
        if not (is_last or is_whole or self._has_told_limit):
            self._has_told_limit = True
            self._say(
                f"evaluations before the last step read the first {result.num_tokens:,} tokens; "
                "training.evaluate_tokens=all reads all"
            )
        if is_best:
            self._keep_best(step)
        self._figures.observe(evaluator, step, self._stop_if_requested)
        return result

    @functools.cached_property
    def _limit(self) -> dict[str, int]:
        """Argument of `RunData.evaluate` that limits evaluations before the last step."""
        num_steps = self._described.identity()["training"]["num_steps"]
        max_tokens = tokens_before_the_end(self._experiment, num_steps)
        return {} if max_tokens is None else {"max_tokens": max_tokens}

    def _keep_best(self, step: int) -> None:
        self._ensure_checkpoint(step)
        if not self._is_chief:
            return
        try:
            self._store.keep_best(step)
        except ValueError as error:
            raise StorageError(
                f"The checkpoint of step {step} was removed by somebody else.",
                where=self._workdir.checkpoints,
                remedy="Run the same command to resume from the remaining checkpoints.",
            ) from error

    def _ensure_checkpoint(self, step: int) -> None:
        self._saver.wait()
        found = self._is_chief and step in self._store.steps()
        if self.trainer.sum_over_workers(float(found)) == 0.0:
            self._save()
            self._saver.wait()

    def _until_stopped(self, batches: Iterable, num_batches: int) -> Iterator:
        for batch in batches:
            self._stop_if_requested()
            yield batch

    def _stop_if_requested(self) -> None:
        # Several workers agree to stop only after an evaluation.
        if self.trainer.num_workers == 1 and self.trainer.must_stop():
            self._stop()

    def _stop(self) -> None:
        """Saves the current step unless it is saved, and raises PreemptedError."""
        step = self.trainer.step
        self._ensure_checkpoint(step)
        self._note_first_checkpoint()
        reason = self._watcher.requested if self._watcher is not None else None
        raise PreemptedError(
            f"Stopped after step {step}: {reason or 'another worker is being stopped'}.",
            where=str(self._workdir.folder),
            remedy="The step is saved; run the same command to resume.",
        )

    def _say(self, text: str) -> None:
        if self._is_chief:
            self._progress.say(text)
