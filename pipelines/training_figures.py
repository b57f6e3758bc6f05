"""Figures and texts of a run as it trains, its profile, and the choice of its precision."""

import contextlib
import functools
import importlib.metadata
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from txl_tf import __version__
from txl_tf.config.base import flat_settings
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import ModelConfig
from txl_tf.data.prepared_dataset import PreparedDataset, dataset_tokenizer
from txl_tf.distribution.mesh_strategy import MeshStrategy
from txl_tf.distribution.strategy import AnyStrategy, chip_of, is_chief, num_workers
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.evaluation.result import EvaluationResult, TaskResult, perplexity
from txl_tf.generation.decoding import DecodingState, TokenRules, write_tokens
from txl_tf.imports import is_on_jax, jax
from txl_tf.inference.segment_reader import SegmentBatch, read_batches, segments
from txl_tf.layers.compiled_parts import compiled
from txl_tf.model_folder import RunStart
from txl_tf.models.memory import Memory
from txl_tf.models.sizes import num_embedding_parameters, num_parameters, run_flops_per_token
from txl_tf.samplers import RandomSampler
from txl_tf.storage.locks import WritableFolder
from txl_tf.tpu_compiler.chips import CHIPS
from txl_tf.training.ledger import LoopReport
from txl_tf.training.metrics import (
    PAGES,
    PROCESS_RUN,
    TASK_PAGES,
    TRAINING_RUN,
    MetricsLog,
    TensorBoardWriter,
    code_block,
    layer_tag,
    training_figures,
)
from txl_tf.training.train_state import attention_choice
from txl_tf.training.trainer import Trainer

from .progress import plain_table, say

if TYPE_CHECKING:
    from .training_run import TrainingJob

_SPLIT = "valid"
_SAMPLE_TOKENS = 64
# Time of measuring large products, and the least number of rounds.
_PRODUCT_SECONDS, _MIN_ROUNDS = 0.3, 2
_WORTHWHILE_GAIN = 1.3
"""Gain of large products from which mixed bfloat16 pays: a step gains less."""


def peak_tokens_per_second(experiment: ExperimentConfig, strategy: AnyStrategy) -> float | None:
    """Returns the tokens per second at the published peak of the TPUs; `None` for other devices."""
    chip = CHIPS.get(chip_of(strategy) or "")
    if chip is None:
        return None
    flops_per_second = chip.flops_per_second * strategy.num_replicas_in_sync / chip.num_replicas
    return flops_per_second / run_flops_per_token(experiment)


def with_faster_policy(experiment: ExperimentConfig, strategy: AnyStrategy) -> ExperimentConfig:
    """Replaces the precision "auto" of a new run, and prints which one it takes.

    Several processes would measure different rates, and take float32.
    """
    if experiment.training.dtype_policy != "auto":
        return experiment
    policy, reason = "float32", "several processes may measure different speeds"
    if _device_kind(strategy) == "TPU":
        policy, reason = "mixed_bfloat16", "TPUs multiply in bfloat16"
    elif num_workers(strategy) == 1:
        is_on_cpu = _device_kind(strategy) == "CPU"
        gain = product_rate("bfloat16", is_on_cpu) / product_rate("float32", is_on_cpu)
        policy = "mixed_bfloat16" if gain >= _WORTHWHILE_GAIN else "float32"
        reason = f"products in bfloat16 are {gain:.2g} times as fast as in float32 here"
    say(f"This run takes training.dtype_policy={policy}: {reason}.")
    return experiment.with_policy(policy)


def _device_kind(strategy: AnyStrategy) -> str:
    """Returns the kind of device that runs the model: the first of these."""
    if isinstance(strategy, MeshStrategy):
        return strategy.kind
    return next(kind for kind in ("TPU", "GPU", "CPU") if tf.config.list_logical_devices(kind))


def product_rate(dtype: str, is_on_cpu: bool) -> float:
    """Measures the operations per second of large matrix products, which no model exceeds.

    The fastest round counts, because other work only slows a round down.
    """
    # Large enough to outweigh the launch, small enough for a short round. An accelerator works
    # through a queue; the host waits for it once a round.
    width, num_products = (2048, 1) if is_on_cpu else (4096, 8)
    left, right = (
        ops.cast(np.random.default_rng(seed).standard_normal((width, width), np.float32), dtype)
        for seed in range(2)
    )

    def round_seconds() -> float:
        begin = time.perf_counter()
        for _ in range(num_products):
            product = ops.matmul(left, right)
        ops.convert_to_numpy(product[:1, 0])  # waits for the last
        return time.perf_counter() - begin

    round_seconds()  # compiles, and starts the threads
    rounds: list[float] = []
    while len(rounds) < _MIN_ROUNDS or sum(rounds) < _PRODUCT_SECONDS:
        rounds.append(round_seconds())
    return num_products * 2 * width**3 / min(rounds)


def on_first_replica(
    strategy: tf.distribute.Strategy | None, function: Callable[..., Any], *arguments: Any
) -> Any:
    """Runs a function with the same arguments on all replicas; returns the first one's result."""
    if strategy is None:
        return function(*arguments)
    results = strategy.run(function, args=arguments)
    return tf.nest.map_structure(lambda each: strategy.experimental_local_results(each)[0], results)


class SampleWriter:
    """Writer of a text that continues a prompt, always with the same random numbers of its own.

    Its program is traced once per run and reads the current weights.
    """

    PROMPT_TOKENS = 24
    """Tokens of a prompt that are read; the rest is ignored."""

    def __init__(self, model: keras.Model, strategy: AnyStrategy | None = None) -> None:
        self._model = model
        self._strategy = strategy
        self._read = compiled(lambda *inputs: model(*inputs), model)
        self._write = compiled(self._written, model)

    @staticmethod
    def is_possible(config: object) -> bool:
        """True if the model remembers the token before; without recurrence it does not."""
        return not isinstance(config, ModelConfig) or config.effective_memory_length > 0

    def __call__(self, prompt_ids: np.ndarray) -> tuple[np.ndarray, float]:
        """Returns the tokens after a prompt, and their perplexity."""
        prompt_ids, config = prompt_ids[: self.PROMPT_TOKENS], self._model.config
        lengths = []
        if isinstance(config, ModelConfig):  # a sample fills no more of the memory
            longest = len(prompt_ids) + _SAMPLE_TOKENS
            lengths = [min(config.effective_memory_length, longest)]

        def read(batch: SegmentBatch, memory: Memory) -> tuple[Any, Memory]:
            token_ids = ops.convert_to_tensor(batch.token_ids)
            return on_first_replica(self._strategy, self._read, token_ids, memory)

        begin = functools.partial(self._model.initial_memory, 1, *lengths)
        batches = segments([prompt_ids[:-1]], config.segment_length)
        *_, last = read_batches(read, batches, begin)
        newest = ops.convert_to_tensor(prompt_ids[-1:], "int32")
        written = on_first_replica(self._strategy, self._write, newest, last.memory)
        tokens, nats = (ops.convert_to_numpy(each)[:, 0] for each in written)
        return tokens, perplexity(float(np.mean(nats)))

    def _written(self, newest_ids: Any, memory: Memory) -> list[Any]:
        def step(token_ids: Any, _: Any, memory: Memory) -> tuple[Any, Memory]:
            log_probs, memory = self._model.log_probs(token_ids[:, None], memory)
            return log_probs[:, 0], memory

        state = DecodingState.begin(newest_ids, memory, _SAMPLE_TOKENS, with_nats=True)
        rules = TokenRules(RandomSampler(temperature=0.8, top_p=0.9))
        state = write_tokens(step, rules, ops.zeros([1], "int32"), state, _SAMPLE_TOKENS)
        return [state.written, state.nats]


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

    def __init__(self, job: "TrainingJob", trainer: Trainer, say: Callable[[str], None]) -> None:
        self._job = job
        self._trainer = trainer
        self._is_chief = is_chief(job.strategy)
        files = job.workdir.files
        self._log = MetricsLog(job.workdir.metrics, files)
        self._time_log = MetricsLog(job.workdir.time, files)
        self._say = say
        self._clock = job.clock
        self.peak_tokens_per_second = peak_tokens_per_second(job.experiment, job.strategy)
        self._board = TensorBoardWriter(files.subfolder("tensorboard"), self._log)
        self._sampler: SampleWriter | None = None

    def resume(self, step: int, evaluated_step: int) -> None:
        """Removes figures of steps to be repeated, see `MetricsLog.resume`; call it first."""
        self._log.resume(step, evaluated_step)

    def write_overview(self, step: int) -> None:
        """Writes settings and sizes, and the pages of TensorBoard, when a process starts."""
        if step < self._job.experiment.training.num_steps:
            self._clock.begin(self._time_log, step)
        settings = self._job.experiment.to_dict()
        described = {**settings, "data": self._job.data.identity}
        texts = {"configuration": code_block(json.dumps(described, indent=1))}
        hyperparameters = {
            name: value if isinstance(value, bool | int | float | str) else json.dumps(value)
            for name, value in flat_settings(settings).items()
            if value is not None
        }
        run = _SPLIT if self._job.data.has_valid else TRAINING_RUN
        pages = TASK_PAGES if self._job.experiment.task is not None else PAGES
        self._board.write_overview(step, run, pages, hyperparameters, texts)
        command = shlex.join(["txl", *sys.argv[1:]])
        environment = _environment(self._job.strategy)
        self._log.append(step, PROCESS_RUN, {"command": command, "environment": environment})

    def write_training(self, report: LoopReport) -> None:
        """Writes the figures of a loop."""
        self._clock.note_loop(report)
        peak = self.peak_tokens_per_second
        figures = training_figures(report, self._job.data.bytes_per_token, peak)
        self._board.write_figures(report.step, TRAINING_RUN, figures)

    def write_evaluation(self, result: EvaluationResult | TaskResult) -> None:
        """Writes the figures of an evaluation."""
        if self._is_chief:
            self._clock.note("evaluations", result.step, seconds=result.seconds)
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
        self._clock.note("other", step)
        if (run_time := self._clock.run_time) is not None:
            self._say(run_time.describe())

    def flush_to_disk(self) -> None:
        """Flushes the logs to disk, before a checkpoint."""
        self._log.flush_to_disk()
        self._clock.flush_to_disk()

    def observe(self, evaluator: Any, step: int, check: Callable[[], None]) -> None:
        """Writes memory and a sample after an evaluation; all workers call it."""
        dataset = self._job.data.language_text
        if dataset is None:
            return
        begin, memory = time.perf_counter(), None
        if isinstance(self._job.experiment.model, ModelConfig):  # others remember one position
            memory = self._trainer.replica_memory.to_global()
        if self._is_chief:
            if memory is not None:
                self._board.write_figures(step, TRAINING_RUN, memory_figures(memory))
            check()
            if SampleWriter.is_possible(evaluator.config):
                self._write_sample(evaluator, dataset, step)
        self._clock.note("evaluations", step, seconds=time.perf_counter() - begin)

    def _write_sample(self, evaluator: Evaluator, dataset: PreparedDataset, step: int) -> None:
        if self._sampler is None:
            self._sampler = SampleWriter(evaluator.model, evaluator.strategy)
        num_tokens = min(SampleWriter.PROMPT_TOKENS, dataset.num_tokens(_SPLIT))
        prompt = dataset.read_tokens(_SPLIT, 0, num_tokens)
        written, perplexity = self._sampler(prompt)
        tokenizer = dataset_tokenizer(dataset.folder, dataset.manifest)
        text = tokenizer.decode_text([*prompt.tolist(), *written.tolist()])
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


def start_banner(job: "TrainingJob", start: RunStart | None) -> str:
    """Returns the lines that a run begins with."""
    model, training, strategy = job.experiment.model, job.experiment.training, job.strategy
    optimizer = job.experiment.optimizer
    step, passes = job.data.describe_plan()
    num_passes = training.num_steps / job.data.plan.steps_per_epoch
    rows = {
        "model": f"{num_parameters(model):,} parameters, {num_embedding_parameters(model):,} of "
        "them embeddings",
        "devices": f"{_devices(strategy)}, {training.dtype_policy}",
        "attention": None,
        "step": step,
        "length": f"{training.num_steps:,} steps, {num_passes:.3g} {passes}",
        "rate": f"{optimizer.learning_rate:g} ({optimizer.name}), {optimizer.schedule}, "
        f"{optimizer.warmup_steps:,} steps of warm-up",
        "begins": None if start is None else f"{start}: weights only, all settings as here",
        "frozen": ", ".join(training.freeze or ()) or None,
        "adapters": None,
        "run": job.workdir.folder,
        "curves": f"tensorboard --logdir {job.workdir.tensorboard}",
    }
    # Only TPUs have more than one implementation.
    if _device_kind(strategy) == "TPU":
        rows["attention"] = attention_choice(job.experiment, strategy).reason
    if (rank := training.adapter_rank) is not None:
        alpha = training.adapter_alpha or rank
        rows["adapters"] = f"rank {rank}, alpha {alpha:g}; all other weights are frozen"
    return plain_table([(name, text) for name, text in rows.items() if text is not None])


def _devices(strategy: AnyStrategy) -> str:
    num_replicas, num_processes = strategy.num_replicas_in_sync, num_workers(strategy)
    kind, backend = _device_kind(strategy), ""
    if isinstance(strategy, MeshStrategy):
        backend = ", JAX"
    elif num_replicas > 1 and kind != "TPU":  # `--cpu-replicas` leaves a GPU idle
        kind = strategy.extended.worker_devices[0].split("device:")[-1].split(":")[0]
    replicas = "1 replica" if num_replicas == 1 else f"{num_replicas} replicas"
    processes = f" of {num_processes} processes" if num_processes > 1 else ""
    return f"{replicas} on {kind}{processes}{backend}"


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
