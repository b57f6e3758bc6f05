"""Lower bounds of the memory of a job, and the memory of the machine.

Every figure is a lower bound, so that no job is refused that would have worked.
Shape letters used in this module: T segment length, M memory length, K = M + T key length,
D hidden width, N heads, L layers.
"""

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from txl_tf.config.evaluation import EvaluationConfig
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import AnyModelConfig, ModelConfig
from txl_tf.errors import UsageError
from txl_tf.models.sizes import num_parameters, optimizer_copies, row_numbers

_FLOAT_BYTES = 4
# Exists on machines with NVIDIA GPUs, whose memory holds the model.
_GPU_FILE = Path("/dev/nvidiactl")
_MEMINFO = Path("/proc/meminfo")
# Limit and usage of a control group.
_CONTROL_GROUP = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")


class MemoryNeed(NamedTuple):
    """One part of the memory of a job, with the settings that decide it."""

    name: str
    num_bytes: int
    settings: str


def require_training_memory(
    experiment: ExperimentConfig, *, num_replicas: int = 1, tpu: str | None = None
) -> None:
    """Raises UsageError if this machine cannot hold a run with evaluations; skipped for a TPU."""
    if tpu is None:
        require_memory("Training", *training_needs(experiment, num_replicas))
        require_evaluation_memory(experiment.model, experiment.evaluation)


def require_evaluation_memory(
    model: AnyModelConfig, evaluation: EvaluationConfig, *, tpu: str | None = None
) -> None:
    """Raises UsageError if this machine cannot hold an evaluation; skipped for a TPU."""
    if tpu is None:
        segment_length = evaluation.segment_length or model.segment_length
        memory_length = evaluation.memory_length
        if memory_length is None or not getattr(model, "recurrence", False):
            memory_length = model.effective_memory_length
        num_rows = evaluation.batch_size
        settings = (
            f"evaluation.batch_size={num_rows}, segment_length={segment_length}, "
            f"memory_length={memory_length}"
        )
        require_reading_memory(
            "The evaluation", model, num_rows, segment_length, memory_length, settings
        )


def require_reading_memory(
    what: str,
    model: AnyModelConfig,
    num_rows: int,
    segment_length: int,
    memory_length: int,
    settings: str,
) -> None:
    """Raises UsageError if this machine cannot hold rows that are read without training."""
    row = _numbers_per_row(model, memory_length)
    if isinstance(model, ModelConfig):
        row += model.num_heads * segment_length * (memory_length + segment_length)  # [N, T, K]
    # Two bytes per number, the smallest precision.
    rows = MemoryNeed("memory and attention of rows", 2 * num_rows * row, settings)
    require_memory(what, _of_weights(model, 1), rows)


def training_needs(experiment: ExperimentConfig, num_replicas: int = 1) -> list[MemoryNeed]:
    """Lists the lower bounds of memory for training on a CPU machine."""
    model, training, optimizer = experiment.model, experiment.training, experiment.optimizer
    has_average = training.average_weights_from_step is not None
    copies = 2 + optimizer_copies(optimizer) + has_average
    # Muon has fewer copies of kernels. Frozen weights have neither gradients nor slots.
    copies -= optimizer.name == "muon"
    if training.freeze or training.adapter_rank is not None:
        copies = 1
    weights = _of_weights(model, num_replicas * copies)
    if os.environ.get("TF_CONFIG"):
        return [weights]  # machines share the rows
    rows = training.rows_per_replica(num_replicas) * num_replicas
    item_bytes = _FLOAT_BYTES if training.dtype_policy == "float32" else 2
    # Frozen layers may keep no activations.
    num_layers = model.num_layers - len(experiment.frozen_parts.layers)
    activations = num_layers * model.segment_length * model.hidden_dim  # [L, T, D]
    if isinstance(model, ModelConfig) and not training.rematerialize:
        activations = num_layers * row_numbers(model)
    # With clusters, only looked-up logits are computed.
    has_clusters = bool(getattr(model, "cutoffs", ()))
    logits = 0 if has_clusters else model.segment_length * model.vocabulary_size
    settings = f"model.segment_length={model.segment_length}"
    settings += f", model.memory_length={model.memory_length}"
    for name in ("global_batch_size", "gradient_accumulation_steps"):
        settings += f", training.{name}={getattr(training, name)}"
    # A replica reads the parts of its rows one after the other.
    rows_at_once = rows // training.gradient_accumulation_steps
    num_bytes = rows_at_once * (item_bytes * activations + _FLOAT_BYTES * logits)
    num_bytes += rows * item_bytes * _numbers_per_row(model, model.effective_memory_length)
    return [weights, MemoryNeed("memory and activations of rows", num_bytes, settings)]


def require_memory(what: str, *needs: MemoryNeed) -> None:
    """Raises UsageError if this machine's memory cannot hold the needs of a job."""
    if _GPU_FILE.exists():
        return
    largest = max(needs, key=lambda need: need.num_bytes)
    num_bytes, available = sum(need.num_bytes for need in needs), available_bytes()
    if available is not None and num_bytes > available:
        raise UsageError(
            f"{what} would need at least {describe_bytes(num_bytes)} of memory, most of it for the "
            f"{largest.name}; {describe_bytes(available)} are available.",
            where=largest.settings,
            remedy="Lower these settings, or use a larger machine.",
        )


def _of_weights(model: AnyModelConfig, copies: int) -> MemoryNeed:
    names = ("num_layers", "hidden_dim", "vocabulary_size")
    settings = ", ".join(f"model.{name}={getattr(model, name)}" for name in names)
    num_bytes = copies * _FLOAT_BYTES * num_parameters(model)
    return MemoryNeed("weights", num_bytes, settings)


def _numbers_per_row(model: AnyModelConfig, memory_length: int) -> int:
    length = memory_length if isinstance(model, ModelConfig) else 1
    return model.num_layers * length * model.hidden_dim  # [L, M, D]


def available_bytes() -> int | None:
    """Returns the lower of `MemAvailable` and the rest of the control group; `None` if unknown."""
    limits = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        _, line = _MEMINFO.read_text().split("MemAvailable:", 1)
        limits.append(int(line.split()[0]) << 10)
    # `max` fails to parse: there is no limit.
    with contextlib.suppress(OSError, ValueError):
        limit, usage = (int(path.read_text()) for path in _CONTROL_GROUP)
        limits.append(max(0, limit - usage))
    return min(limits, default=None)


def describe_bytes(num_bytes: int) -> str:
    """Formats a number of bytes, such as `1.5 GiB`."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if num_bytes >= size:
            return f"{num_bytes / size:,.1f} {unit}"
    return f"{num_bytes:,} bytes"
