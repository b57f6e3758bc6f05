"""Lower bounds of the memory of a job, and the memory of the machine.

Every figure is a lower bound, so that no job is refused that would have worked.
Shape letters used in this module: B rows, T segment length, M memory length,
K = M + T key length, D hidden width, N heads, V vocabulary, L layers.
"""

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from txl_tf.config.experiment import (
    EvaluationConfig,
    ExperimentConfig,
    OptimizerConfig,
    TrainingConfig,
)
from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig
from txl_tf.errors import UsageError
from txl_tf.models.sizes import num_parameters, row_numbers

_FLOAT_BYTES = 4
# Exists on machines with NVIDIA GPUs, whose memory holds the model.
_GPU_FILE = Path("/dev/nvidiactl")
_SLOTS = {"adam": 2, "adamw": 2, "lamb": 2, "muon": 1, "adafactor": 0, "sgd": 0}

_MEMINFO = Path("/proc/meminfo")
# Limit and usage of a control group, version 2 and version 1.
_CONTROL_GROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)

AnyModelConfig = ModelConfig | LSTMConfig | QRNNConfig


@dataclasses.dataclass(frozen=True)
class MemoryNeed:
    """One part of the memory of a job, with the settings that decide it."""

    what: str
    """Name of the part."""
    num_bytes: int
    where: str
    """Settings that decide it, with their values."""


def require_training_memory(
    experiment: ExperimentConfig, *, num_replicas: int = 1, tpu: str | None = None
) -> None:
    """Raises UsageError if this machine cannot hold a run with evaluations; skipped for a TPU."""
    if tpu is None:
        require_memory_of(training_needs(experiment, num_replicas), "Training")
        require_evaluation_memory(experiment.model, experiment.evaluation)


def require_evaluation_memory(
    model: AnyModelConfig, evaluation: EvaluationConfig, *, tpu: str | None = None
) -> None:
    """Raises UsageError if this machine cannot hold an evaluation; skipped for a TPU."""
    if tpu is None:
        require_memory_of(evaluation_needs(model, evaluation), "The evaluation")


def training_needs(experiment: ExperimentConfig, num_replicas: int = 1) -> list[MemoryNeed]:
    """Lists the lower bounds of memory for training on a CPU machine."""
    model, training = experiment.model, experiment.training
    # Frozen weights have neither gradients nor slots, and frozen layers may keep no activations.
    is_frozen = training.freeze or training.adapter_rank is not None
    copies = 1 if is_frozen else _copies(experiment.optimizer, training)
    num_layers = model.num_layers - len(experiment.frozen_parts.layers)
    needs = [
        MemoryNeed(
            "weights, gradients and optimizer",
            num_replicas * copies * _FLOAT_BYTES * num_parameters(model),
            _sizes(model) + (f", --cpu-replicas {num_replicas}" if num_replicas > 1 else ""),
        )
    ]
    if os.environ.get("TF_CONFIG"):
        return needs  # machines share the rows
    rows = training.rows_per_replica(num_replicas) * num_replicas
    item_bytes = _FLOAT_BYTES if training.dtype_policy == "float32" else 2
    # A replica reads the parts of its rows one after the other.
    rows_at_once = rows // training.gradient_accumulation_steps
    activations = model.segment_length * model.hidden_dim * num_layers  # [L, T, D]
    if isinstance(model, ModelConfig) and training.rematerialize:
        activations += _scores(model, model.segment_length, model.effective_memory_length)
    elif isinstance(model, ModelConfig):
        activations = num_layers * row_numbers(model)
    where = f"training.global_batch_size={training.global_batch_size}"
    if training.gradient_accumulation_steps > 1:
        where += f", training.gradient_accumulation_steps={training.gradient_accumulation_steps}"
    return [
        *needs,
        MemoryNeed(
            "what rows remember",
            rows * item_bytes * _remembered(model, model.effective_memory_length),
            f"{where}, model.memory_length={model.memory_length}",
        ),
        MemoryNeed(
            "activations of rows",
            rows_at_once * (item_bytes * activations + _FLOAT_BYTES * _logits(model)),
            f"{where}, model.segment_length={model.segment_length}, "
            f"model.memory_length={model.memory_length}",
        ),
    ]


def evaluation_needs(model: AnyModelConfig, evaluation: EvaluationConfig) -> list[MemoryNeed]:
    """Lists the lower bounds of memory for an evaluation on a CPU machine."""
    segment_length = evaluation.segment_length or model.segment_length
    memory_length = evaluation.memory_length
    if memory_length is None or not getattr(model, "recurrence", False):
        memory_length = model.effective_memory_length
    return reading_needs(
        model,
        evaluation.batch_size,
        segment_length,
        memory_length,
        f"evaluation.batch_size={evaluation.batch_size}, segment_length={segment_length}, "
        f"memory_length={memory_length}",
    )


def reading_needs(
    model: AnyModelConfig, num_rows: int, segment_length: int, memory_length: int, where: str
) -> list[MemoryNeed]:
    """Lists the lower bounds of memory for reading rows without training."""
    row = _remembered(model, memory_length)
    if isinstance(model, ModelConfig):
        row += _scores(model, segment_length, memory_length)
    # Two bytes per number, the smallest precision.
    rows = MemoryNeed("memory and attention of rows", 2 * num_rows * row, where)
    weights = _FLOAT_BYTES * num_parameters(model)
    return [MemoryNeed("weights", weights, _sizes(model)), rows]


def require_memory_of(needs: Sequence[MemoryNeed], what: str) -> None:
    """Raises UsageError if this machine's memory cannot hold the needs of `what`."""
    if _GPU_FILE.exists():
        return
    largest = max(needs, key=lambda need: need.num_bytes)
    needed, available = sum(need.num_bytes for need in needs), available_bytes()
    if available is not None and needed > available:
        raise UsageError(
            f"{what}, most of it {largest.what}, would take {describe_bytes(needed)}; "
            f"{describe_bytes(available)} are available.",
            where=largest.where,
            remedy="Choose smaller numbers, or a larger machine.",
        )


def _copies(optimizer: OptimizerConfig, training: TrainingConfig) -> int:
    """Counts the arrays of the size of the weights: weights, gradients, optimizer state."""
    slots = _SLOTS[optimizer.name]
    if optimizer.name == "sgd" and optimizer.momentum:
        slots = 1
    return 2 + slots + training.averages_weights


def _remembered(model: AnyModelConfig, memory_length: int) -> int:
    if not isinstance(model, ModelConfig):
        return model.num_layers * model.hidden_dim
    return model.num_layers * memory_length * model.hidden_dim  # [L, M, D]


def _scores(model: ModelConfig, segment_length: int, memory_length: int) -> int:
    return model.num_heads * segment_length * (memory_length + segment_length)  # [N, T, K]


def _logits(model: AnyModelConfig) -> int:
    # With clusters, only looked-up logits are computed.
    return 0 if getattr(model, "cutoffs", ()) else model.segment_length * model.vocabulary_size


def _sizes(model: AnyModelConfig) -> str:
    names = ["num_layers", "hidden_dim", "intermediate_dim", "vocabulary_size"]
    if isinstance(model, ModelConfig):
        names[2:2] = ["num_heads", "head_dim"]
    return ", ".join(
        f"model.{name}={getattr(model, name)}" for name in names if hasattr(model, name)
    )


def available_bytes() -> int | None:
    """Returns the lower of `MemAvailable` and the rest of the control group; `None` if unknown."""
    limits = [_of_machine(), *map(_of_control_group, _CONTROL_GROUPS)]
    known = [limit for limit in limits if limit is not None]
    return max(0, min(known)) if known else None


def describe_bytes(num_bytes: int) -> str:
    """Formats a number of bytes, such as `1.5 GiB`."""
    if num_bytes < 1 << 20:
        return f"{num_bytes:,} bytes"
    if num_bytes < 1 << 30:
        return f"{num_bytes / (1 << 20):.1f} MiB"
    # Integer division first, because a huge number overflows a float.
    gibibytes = (num_bytes >> 20) / 1024 if num_bytes < 1 << 80 else num_bytes >> 30
    return f"{gibibytes:,.1f} GiB" if isinstance(gibibytes, float) else "over 2**50 GiB"


def _of_machine() -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return None


def _of_control_group(paths: tuple[Path, Path]) -> int | None:
    # `max` fails to parse: there is no limit.
    with contextlib.suppress(OSError, ValueError):
        return int(paths[0].read_text()) - int(paths[1].read_text())
    return None
