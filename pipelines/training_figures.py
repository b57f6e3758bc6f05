"""Figures and texts of a run as it trains: losses, overview, memory, attention, samples."""

import dataclasses
import importlib.metadata
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from txl_tf import __version__
from txl_tf.config.base import flat_settings
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import ModelConfig
from txl_tf.data.prepared_dataset import PreparedDataset, dataset_tokenizer
from txl_tf.data.tokenizers import TOKENIZERS
from txl_tf.distribution.strategy import is_chief
from txl_tf.evaluation.attention import AttentionMass
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.evaluation.result import EvaluationResult, TaskResult
from txl_tf.evaluation.task_evaluator import TaskEvaluator
from txl_tf.models.sizes import num_parameters, run_flops_per_token
from txl_tf.storage.writable_folder import WritableFolder
from txl_tf.training.ledger import LoopReport
from txl_tf.training.metrics import PROCESS_RUN, TRAINING_RUN, MetricsLog, RunClock, layer_tag
from txl_tf.training.tensorboard import TensorBoardWriter
from txl_tf.training.trainer import Trainer

from .device_peak import DevicePeak, measured_peak, published_peak
from .evaluation import split_text
from .run_data import RunData
from .text_sample import SampleWriter
from .workdir import Workdir

Check = Callable[[], None]
_SPLIT = "valid"
# Training time before the peak is measured, which takes half a second itself.
_SECONDS_BEFORE_PEAK = 1.0


class RunFigures:
    """Writer of a run's figures and texts to TensorBoard's files and the metrics log.

    Changes neither the state of training nor its random numbers. `clock` began with the job.
    """

    def __init__(
        self,
        experiment: ExperimentConfig,
        data: RunData,
        trainer: Trainer,
        workdir: Workdir,
        folder: WritableFolder,
        strategy: tf.distribute.Strategy,
        say: Callable[[str], None],
        clock: RunClock,
    ) -> None:
        self._experiment = experiment
        self._data = data
        self._trainer = trainer
        self._strategy = strategy
        # Only the first worker writes.
        self._is_chief = is_chief(strategy)
        self._log = MetricsLog(workdir.metrics, folder)
        self._say = say
        self._clock = clock
        self._time_log = MetricsLog(workdir.time, folder)
        self._flops_per_token = run_flops_per_token(experiment)
        self._peak = published_peak(strategy)
        self._must_measure = self._peak is None and not _is_on_tpu(strategy)
        self._step_seconds = 0.0
        self._last_evaluation_seconds = 0.0
        self._board = TensorBoardWriter(
            folder.subfolder(os.path.basename(workdir.tensorboard)),
            data.bytes_per_token,
            self._log,
            has_peak=self._peak is not None or self._must_measure,
        )
        self._attention: AttentionMass | None = None
        self._sampler: SampleWriter | None = None

    def resume(self, step: int, evaluated_step: int) -> None:
        """Removes figures of steps to be repeated, see `MetricsLog.resume`; call it first."""
        self._log.resume(step, evaluated_step)

    def write_overview(self, step: int) -> None:
        """Writes settings and sizes, and the pages of TensorBoard, when a process starts."""
        if step < self._experiment.training.num_steps:
            self._clock.begin(self._time_log, step)
        settings = self._experiment.to_dict()
        described = {**settings, "data": self._data.identity}
        run = _SPLIT if self._data.has_valid else TRAINING_RUN
        texts = {
            "configuration": _code(json.dumps(described, indent=1)),
            "model_size": _model_size(self._trainer),
        }
        self._board.write_overview(step, run, _hyperparameters(flat_settings(settings)), texts)
        process: dict[str, Any] = {"command": shlex.join(["txl", *sys.argv[1:]])}
        process["environment"] = _environment(self._trainer.strategy)
        self._log.append(step, PROCESS_RUN, process)
        if self._peak is not None:
            self._write_peak(step, self._peak)

    @property
    def peak_tokens_per_second(self) -> float | None:
        """Tokens per second at the peak of the devices; `None` while it is unknown."""
        return None if self._peak is None else self._peak.flops_per_second / self._flops_per_token

    def write_training(self, report: LoopReport) -> None:
        """Writes the figures of a loop, and measures the peak once the loops take long enough."""
        if not self._is_chief:
            return
        self._clock.note_loop(report)
        self._board.write_training(report, self.peak_tokens_per_second)
        self._step_seconds += 0.0 if report.has_compiled else report.seconds
        if self._must_measure and self._step_seconds >= _SECONDS_BEFORE_PEAK:
            self._must_measure = False
            self._peak = measured_peak(self._experiment, self._strategy)
            self._write_peak(report.step, self._peak)

    def _write_peak(self, step: int, peak: DevicePeak) -> None:
        self._say(f"peak: {peak.describe()}")
        self._log.append(step, PROCESS_RUN, {"peak": dataclasses.asdict(peak)})

    def write_evaluation(self, result: EvaluationResult | TaskResult) -> None:
        """Writes the figures of an evaluation."""
        if self._is_chief:
            self._note_evaluation(result.step, result.seconds)
            self._board.write_evaluation(result)

    def write_checkpoint(self, step: int, seconds: float) -> None:
        """Writes how long training paused for the checkpoint of a step, and the goodput so far."""
        self._clock.note("checkpoints", step, seconds=seconds)
        figures = {"performance/checkpoint_seconds": seconds}
        if (run_time := self._clock.run_time) is not None:
            figures["performance/goodput"] = run_time.goodput
        self._board.write_figures(step, TRAINING_RUN, figures)

    def write_end(self, step: int) -> None:
        """Logs the end of the job, and prints its use of time."""
        run_time = self._clock.end(step)
        if run_time is not None:
            self._say(run_time.describe())
            evaluations = run_time.seconds["evaluations"]
            training = run_time.total_seconds - run_time.seconds["start"] - evaluations
            if (early := evaluations - self._last_evaluation_seconds) > 0.0 and training > 0.0:
                tokens = self._experiment.training.evaluate_tokens
                setting = "" if tokens is None else f"={tokens}"
                self._say(
                    f"evaluations before the last step: {early / training:.1%} of the time of "
                    f"training (training.evaluate_tokens{setting})"
                )

    def flush_to_disk(self) -> None:
        """Flushes the logs to disk, before a checkpoint."""
        self._log.flush_to_disk()
        self._clock.flush_to_disk()

    def observe(self, evaluator: Evaluator | TaskEvaluator, step: int, check: Check) -> None:
        """Writes memory, attention and a sample after an evaluation; all workers call it."""
        dataset = self._data.language_text
        if dataset is None or isinstance(evaluator, TaskEvaluator):
            return
        begin = time.perf_counter()
        self._look_at(evaluator, dataset, step, check)
        self._note_evaluation(step, time.perf_counter() - begin)

    def _note_evaluation(self, step: int, seconds: float) -> None:
        self._clock.note("evaluations", step, seconds=seconds)
        if step == self._experiment.training.num_steps:
            self._last_evaluation_seconds += seconds

    def _look_at(
        self, evaluator: Evaluator, dataset: PreparedDataset, step: int, check: Check
    ) -> None:
        figures = {}
        if isinstance(self._experiment.model, ModelConfig):  # others have no positions in memory
            length, norms = self._trainer.measure_memory()
            figures = {layer_tag("memory/norm", layer): norm for layer, norm in enumerate(norms)}
            figures["memory/valid_length"] = length
        if not self._is_chief:
            return
        if figures:
            self._board.write_figures(step, TRAINING_RUN, figures)
        check()
        if AttentionMass.is_possible(evaluator.config):
            if self._attention is None:
                self._attention = AttentionMass(evaluator.model, evaluator.strategy)
            shares = self._attention(split_text(dataset, _SPLIT))
            tags = {layer_tag("memory/attention_mass", n): x for n, x in enumerate(shares or [])}
            self._board.write_figures(step, _SPLIT, tags)
        check()
        self._write_sample(evaluator, dataset, step, check)

    def _write_sample(
        self, evaluator: Evaluator, dataset: PreparedDataset, step: int, check: Check
    ) -> None:
        manifest = dataset.manifest
        is_known = manifest.tokenizer_kind in (each.kind for each in TOKENIZERS)
        if not is_known or not SampleWriter.is_possible(evaluator.config):
            return
        if self._sampler is None:
            self._sampler = SampleWriter(evaluator.model, evaluator.strategy)
        num_tokens = min(SampleWriter.PROMPT_TOKENS, dataset.num_tokens(_SPLIT))
        prompt = dataset.read_tokens(_SPLIT, 0, num_tokens)
        written, perplexity = self._sampler(prompt, check)
        tokenizer = dataset_tokenizer(dataset.folder, manifest)
        text = tokenizer.decode_text([*prompt.tolist(), *written.tolist()])
        self._board.write_sample(step, text, perplexity, _SPLIT)


def _is_on_tpu(strategy: tf.distribute.Strategy) -> bool:
    return isinstance(strategy, tf.distribute.TPUStrategy)


def _environment(strategy: tf.distribute.Strategy) -> dict[str, Any]:
    versions = {name: importlib.metadata.version(name) for name in ("tensorflow", "keras", "numpy")}
    return {
        "txl-tf": __version__,
        **versions,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "devices": [each.name for each in tf.config.list_logical_devices()],
        "replicas": strategy.num_replicas_in_sync,
    }


def _hyperparameters(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, bool | int | float | str) else json.dumps(value)
        for name, value in settings.items()
        if value is not None
    }


def _model_size(trainer: Trainer) -> str:
    """Formats a table of the trainable parameters by the first part of their path."""
    counts: dict[str, int] = {}
    for variable in trainer.model.trainable_variables:
        part = variable.path.partition("/")[2].partition("/")[0] or variable.path
        counts[part] = counts.get(part, 0) + int(tf.size(variable).numpy())
    total = num_parameters(trainer.config.model)
    rows = [("all", total), *counts.items()]
    lines = [f"| {name} | {count:,} |" for name, count in rows]
    return "\n".join(["| part | trainable parameters |", "|---|--:|", *lines])


def _code(text: str) -> str:
    # Four spaces make a code block in Markdown.
    return "\n".join("    " + line for line in text.splitlines())
