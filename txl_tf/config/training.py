"""Configurations of a training run and of its optimizer."""

import dataclasses
from typing import Any, Literal

from txl_tf.config.base import MAX_ROWS, MAX_STEPS, MAX_STEPS_PER_LOOP, FrozenConfig

_ADAM_FIELDS = frozenset({"beta_1", "beta_2", "epsilon"})
_FIELDS_OF_OPTIMIZER = {
    "adam": _ADAM_FIELDS,
    "adamw": _ADAM_FIELDS | {"weight_decay"},
    "lamb": _ADAM_FIELDS | {"weight_decay", "max_weight_norm"},
    "adafactor": frozenset({"weight_decay"}),
    "muon": _ADAM_FIELDS | {"weight_decay", "momentum"},
    "sgd": frozenset({"weight_decay", "momentum", "nesterov"}),
}
_FIELDS_OF_SCHEDULE = {
    "cosine": frozenset({"final_learning_rate_fraction"}),
    "inverse_square_root": frozenset(),
    "constant": frozenset(),
    "plateau": frozenset({"final_learning_rate_fraction", "plateau_factor", "plateau_patience"}),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig(FrozenConfig):
    """The optimizer, its learning rate over the run, and the limit of the gradients.

    Fields that the named optimizer or schedule does not use must be left at
    their defaults.

    Raises:
        ValueError: If a value is out of its range, or set and not used.
    """

    name: Literal["adam", "adamw", "lamb", "adafactor", "muon", "sgd"] = "adam"
    """The optimizer."""
    schedule: Literal["cosine", "inverse_square_root", "constant", "plateau"] = "cosine"
    """What the learning rate does after the warm-up; "plateau" lowers it when validation stalls."""
    learning_rate: float = 2.5e-4
    """Peak, reached at the end of the warm-up."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly from 0."""
    final_learning_rate_fraction: float = 0.004
    """The floor of "cosine" and "plateau", as a fraction of the peak."""
    plateau_factor: float = 0.5
    """What "plateau" multiplies the learning rate by."""
    plateau_patience: int = 0
    """Evaluations without improvement in a row that "plateau" lets pass."""
    clip_norm: float = 0.25
    """Largest global norm of the gradients, after the all-reduce."""
    beta_1: float = 0.9
    """Decay of the running mean of the gradients; not of "adafactor" and "sgd"."""
    beta_2: float = 0.999
    """Decay of the running mean of their squares; not of "adafactor" and "sgd"."""
    epsilon: float = 1e-8
    """Added to the root of the second mean; not of "adafactor" and "sgd"."""
    weight_decay: float = 0.0
    """Share of the learning rate by which weights shrink each step, without biases and scales of
    norms; not of "adam"."""
    momentum: float | None = None
    """Decay of the sum of the gradients of "muon" and "sgd"; None: 0.95 and 0."""
    nesterov: bool = False
    """Whether "sgd" takes the gradient once more after the momentum."""
    max_weight_norm: float | None = None
    """Largest norm that "lamb" takes a variable to have; None: no limit."""

    def validate(self) -> None:
        self._check_use("name", _FIELDS_OF_OPTIMIZER)
        self._check_use("schedule", _FIELDS_OF_SCHEDULE)
        for name in ("learning_rate", "clip_norm", "epsilon", "max_weight_norm"):
            value = getattr(self, name)
            self._check(name, value is None or value > 0, "be positive")
        for name in ("warmup_steps", "plateau_patience", "weight_decay"):
            self._check(name, getattr(self, name) >= 0, "not be negative")
        for name in ("beta_1", "beta_2", "momentum"):
            value = getattr(self, name)
            self._check(name, value is None or 0.0 <= value < 1.0, "be in [0, 1)")
        fraction = self.final_learning_rate_fraction
        self._check("final_learning_rate_fraction", 0.0 <= fraction <= 1.0, "be in [0, 1]")
        self._check("plateau_factor", 0.0 < self.plateau_factor < 1.0, "be in (0, 1)")
        if self.nesterov and not self.momentum:
            raise ValueError(f"`nesterov` needs a momentum. Received: momentum={self.momentum}")

    def _check(self, name: str, is_valid: bool, rule: str) -> None:
        if not is_valid:
            raise ValueError(f"`{name}` must {rule}. Received: {name}={getattr(self, name)}")

    def _check_use(self, chooser: str, fields_of_choice: dict[str, frozenset[str]]) -> None:
        choice = getattr(self, chooser)
        unused = frozenset().union(*fields_of_choice.values()) - fields_of_choice[choice]
        for field in dataclasses.fields(self):
            value: Any = getattr(self, field.name)
            if field.name in unused and value != field.default:
                users = [name for name, used in fields_of_choice.items() if field.name in used]
                raise ValueError(
                    f"`{field.name}` is for `{chooser}` {' or '.join(users)} and would not be "
                    f"used. Received: {field.name}={value}, {chooser}={choice}"
                )


_LIMITS = {
    "global_batch_size": MAX_ROWS,
    "num_steps": MAX_STEPS,
    "steps_per_loop": MAX_STEPS_PER_LOOP,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig(FrozenConfig):
    """Batch size, steps, intervals and precision of a training run.

    Raises:
        ValueError: If a value is out of its range.
    """

    global_batch_size: int
    """Rows of all replicas together; each replica takes an equal share."""
    num_steps: int
    """Steps of the whole run."""
    steps_per_loop: int = 100
    """Steps that run on the device before the host looks again."""
    checkpoint_every_steps: int = 1000
    """Steps between two checkpoints; the last step always has one."""
    evaluate_every_steps: int | None = None
    """Steps between evaluations of the validation split; None: only at the end."""
    num_kept_checkpoints: int = 3
    """How many of the newest checkpoints are kept."""
    rotate_epochs: bool = True
    """Whether each epoch cuts the corpus at other places, decided by the seed."""
    seed: int = 0
    """Decides initial weights, dropout masks and rotations."""
    dtype_policy: Literal["float32", "mixed_bfloat16"] = "float32"
    """Keras dtype policy of the model."""
    tensor_float_32: bool = False
    """Whether products of float32 numbers may round them first, on a TPU to bfloat16 and on a GPU
    to TF32. Exact ones take a TPU six passes instead of one."""
    gradient_accumulation_steps: int = 1
    """Parts of a replica's rows that are read one after the other, to save memory."""
    rematerialize: bool = False
    """Whether blocks are computed again in the backward pass instead of kept, to save memory."""
    on_non_finite: Literal["stop", "skip"] = "stop"
    """What a step with a loss or gradient that is not finite does; neither changes a weight."""
    spike_deviations: float | None = None
    """Steps whose loss or gradient norm is further above its running mean are skipped, in
    standard deviations; None: none is."""
    jit_compile: bool = True
    """Whether a run on a single CPU or GPU compiles the step with XLA."""
    loss_positions: Literal["all", "last_half"] = "all"
    """Positions of a segment that are trained on; of an odd number the larger half."""
    document_boundaries: Literal["ignore", "mask"] = "ignore"
    """Whether tokens attend across the beginning of a document, and remember what is before it."""
    intermediate_losses: bool = False
    """Whether in the first half of the run all blocks predict, see `AuxiliaryLosses`."""
    num_targets: Literal[1, 2] = 1
    """Tokens that each position predicts in training; the second with half the weight."""
    average_weights_from_step: int | None = None
    """First step of which the weights are averaged, see `WeightAverage`; None: no average."""
    average_weights_decay: float | None = None
    """Decay of an exponential average; None: all steps count the same."""

    def validate(self) -> None:
        self.check_at_most(_LIMITS)
        for name in (
            "global_batch_size",
            "num_steps",
            "steps_per_loop",
            "checkpoint_every_steps",
            "num_kept_checkpoints",
            "gradient_accumulation_steps",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(
                    f"`{name}` must be positive. Received: {name}={getattr(self, name)}"
                )
        if self.gradient_accumulation_steps > self.global_batch_size:
            raise ValueError(
                "`gradient_accumulation_steps` must be at most `global_batch_size`: a part has a "
                "row. Received: gradient_accumulation_steps="
                f"{self.gradient_accumulation_steps}, global_batch_size={self.global_batch_size}"
            )
        if self.evaluate_every_steps is not None and self.evaluate_every_steps <= 0:
            raise ValueError(
                "`evaluate_every_steps` must be positive, or None. Received: "
                f"evaluate_every_steps={self.evaluate_every_steps}"
            )
        start = self.average_weights_from_step
        if start is not None and not 0 < start <= self.num_steps:
            raise ValueError(
                "`average_weights_from_step` must be between 1 and `num_steps`, or None. Received: "
                f"average_weights_from_step={start}, num_steps={self.num_steps}"
            )
        decay = self.average_weights_decay
        if decay is not None and (start is None or not 0.0 < decay < 1.0):
            raise ValueError(
                "`average_weights_decay` must be between 0 and 1 and needs "
                "`average_weights_from_step`, or None. Received: "
                f"average_weights_decay={decay}, average_weights_from_step={start}"
            )
        if self.spike_deviations is not None and self.spike_deviations <= 0:
            raise ValueError(
                "`spike_deviations` must be positive, or None. Received: "
                f"spike_deviations={self.spike_deviations}"
            )
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"`seed` must be in [0, 2**31). Received: seed={self.seed}")

    def rows_per_replica(self, num_replicas: int) -> int:
        """Rows that each replica runs.

        Args:
            num_replicas: int. Replicas that share the global batch.

        Returns:
            The number of rows, a multiple of `gradient_accumulation_steps`.
            Where the global batch cannot be shared out equally, some are
            padding.
        """
        num_parts = self.gradient_accumulation_steps
        return -(-self.global_batch_size // (num_replicas * num_parts)) * num_parts
