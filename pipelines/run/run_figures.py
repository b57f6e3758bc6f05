"""Figures and texts of a run as it trains, and its profile, for TensorBoard."""

import contextlib
import importlib.metadata
import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from txl_tf import __version__
from txl_tf.config.differences import flat_settings
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import ModelConfig
from txl_tf.data.prepared_dataset import PreparedDataset, dataset_tokenizer
from txl_tf.distribution.mesh_strategy import MeshStrategy
from txl_tf.distribution.strategy import AnyStrategy, chip_of, is_chief
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.evaluation.result import EvaluationResult, TaskResult
from txl_tf.imports import is_on_jax, jax
from txl_tf.models.sizes import run_flops_per_token
from txl_tf.storage.writable_folder import WritableFolder
from txl_tf.tpu_compiler.chips import CHIPS
from txl_tf.training.figures import PAGES, TASK_PAGES, layer_tag, training_figures
from txl_tf.training.ledger import LoopReport
from txl_tf.training.metrics_log import PROCESS_RUN, TRAINING_RUN, MetricsLog
from txl_tf.training.tensorboard_writer import TensorBoardWriter, code_block
from txl_tf.training.trainer import Trainer

from .sample_writer import SampleWriter
from .training_job import TrainingJob

_SPLIT = "valid"


def peak_tokens_per_second(experiment: ExperimentConfig, strategy: AnyStrategy) -> float | None:
    """Returns the tokens per second at the published peak of the TPUs; `None` for other devices."""
    chip = CHIPS.get(chip_of(strategy) or "")
    if chip is None:
        return None
    flops_per_second = chip.flops_per_second * strategy.num_replicas_in_sync / chip.num_replicas
    return flops_per_second / run_flops_per_token(experiment)


def memory_figures(memory: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Returns the mean filled length of a memory, and the mean norm of each layer's states.

    `memory` has the arrays of all rows by name, as `ReplicaState.to_global` returns them.
    """
    lengths = memory["valid_length"]
    figures = {"memory/valid_length": float(lengths.mean())}
    layers = [array for name, array in sorted(memory.items()) if name.startswith("states/")]
    for layer, states in enumerate(layers):  # [B, M, D]
        is_filled = np.arange(states.shape[1]) >= states.shape[1] - lengths[:, None]
        if is_filled.any():
            norms = np.linalg.norm(states[is_filled].astype(np.float32), axis=1)
            figures[layer_tag("memory/norm", layer)] = float(norms.mean())
    return figures


class RunFigures:
    """Writer of a run's figures and texts, which changes no state or random number of training."""

    def __init__(self, job: TrainingJob, trainer: Trainer) -> None:
        self._job = job
        self._trainer = trainer
        self._is_chief = is_chief(job.strategy)
        files = job.workdir.files
        self._log = MetricsLog(job.workdir.metrics, files)
        self.peak_tokens_per_second = peak_tokens_per_second(job.experiment, job.strategy)
        self._board = TensorBoardWriter(files.subfolder("tensorboard"), self._log)
        self._sampler: SampleWriter | None = None

    def resume(self, step: int, evaluated_step: int) -> None:
        """Removes figures of steps to be repeated, see `MetricsLog.resume`; call it first."""
        self._log.resume(step, evaluated_step)

    def write_overview(self, step: int) -> None:
        """Writes settings and sizes, and the pages of TensorBoard, when a process starts."""
        settings = self._job.experiment.to_dict()
        description = {**settings, "data": self._job.data.identity}
        texts = {"configuration": code_block(json.dumps(description, indent=1))}
        hyperparameters = {
            name: value if isinstance(value, bool | int | float | str) else json.dumps(value)
            for name, value in flat_settings(settings).items()
            if value is not None
        }
        run = _SPLIT if self._job.data.has_valid else TRAINING_RUN
        pages = TASK_PAGES if self._job.experiment.task is not None else PAGES
        self._board.write_overview(step, run, pages, hyperparameters, texts)
        process = {
            "command": shlex.join(["txl", *sys.argv[1:]]),
            "environment": _environment(self._job.strategy),
        }
        self._log.append(step, PROCESS_RUN, process)

    def write_training(self, report: LoopReport) -> None:
        """Writes the figures of a loop."""
        figures = training_figures(
            report, self._job.data.bytes_per_token, self.peak_tokens_per_second
        )
        self._board.write_figures(report.step, TRAINING_RUN, figures)

    def write_evaluation(self, result: EvaluationResult | TaskResult) -> None:
        """Writes the figures of an evaluation."""
        if self._is_chief:
            self._board.write_evaluation(result)

    def flush_to_disk(self) -> None:
        """Flushes the log to disk, before a checkpoint."""
        self._log.flush_to_disk()

    def observe(self, evaluator: Any, step: int, check: Callable[[], None]) -> None:
        """Writes memory and a sample after an evaluation; all workers call it."""
        dataset = self._job.data.language_text
        if dataset is None:
            return
        memory = None
        if isinstance(self._job.experiment.model, ModelConfig):  # others remember one position
            memory = self._trainer.replica_memory.to_global()
        if self._is_chief:
            if memory is not None:
                self._board.write_figures(step, TRAINING_RUN, memory_figures(memory))
            check()
            if SampleWriter.is_possible(evaluator.config):
                self._write_sample(evaluator, dataset, step)

    def _write_sample(self, evaluator: Evaluator, dataset: PreparedDataset, step: int) -> None:
        if self._sampler is None:
            self._sampler = SampleWriter(evaluator.model, evaluator.strategy)
        num_tokens = min(SampleWriter.PROMPT_TOKENS, dataset.num_tokens(_SPLIT))
        prompt = dataset.read_tokens(_SPLIT, 0, num_tokens)
        sample_ids, perplexity = self._sampler(prompt)
        tokenizer = dataset_tokenizer(dataset.folder, dataset.manifest)
        text = tokenizer.decode_text([*prompt.tolist(), *sample_ids.tolist()])
        self._board.write_sample(step, text, perplexity, _SPLIT)


def _environment(strategy: AnyStrategy) -> dict[str, Any]:
    devices = [each.name for each in tf.config.list_logical_devices()]
    names = ["tensorflow", "keras", "numpy"]
    if isinstance(strategy, MeshStrategy):
        names, devices = [*names, "jax"], list(map(str, strategy.devices))
    versions = {name: importlib.metadata.version(name) for name in names}
    return {
        "txl-tf": __version__,
        **versions,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "backend": keras.backend.backend(),
        "devices": devices,
        "replicas": strategy.num_replicas_in_sync,
    }


@contextlib.contextmanager
def profiled_loop(
    steps: range | None, trainer: Trainer, folder: WritableFolder, say: Callable[[str], None]
) -> Iterator[None]:
    """Profiles the next loop, for TensorBoard, if it contains one of `steps`, counted from 1."""
    if steps is None or steps[-1] <= trainer.step or trainer.next_stop < steps[0]:
        yield
        return
    first, last = trainer.step + 1, trainer.next_stop
    folder.make()
    profile = jax.profiler.trace if is_on_jax() else tf.profiler.experimental.Profile
    with profile(folder.path):
        yield
    say(f"Profiled the steps {first} to {last}, a whole loop: {folder.path}/plugins/profile")
