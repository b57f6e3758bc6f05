"""Settings of an optimizer and its learning rate."""

import dataclasses
from typing import Annotated, Literal

from txl_tf.config.base import (
    FRACTION,
    FRACTION_BELOW_ONE,
    FRACTION_WITHIN,
    FrozenConfig,
    not_negative,
    positive,
)

# A field that only some optimizers or schedules use must be in these tables.
_ADAM_FIELDS = frozenset({"beta_1", "beta_2", "epsilon"})
_FIELDS_OF_OPTIMIZER = {
    "adam": _ADAM_FIELDS,
    "adamw": _ADAM_FIELDS | {"weight_decay"},
    "lamb": _ADAM_FIELDS | {"weight_decay", "max_weight_norm"},
    "muon": _ADAM_FIELDS | {"weight_decay", "momentum"},
    "sgd": frozenset({"weight_decay", "momentum"}),
}
_FIELDS_OF_SCHEDULE = {
    "cosine": frozenset({"final_learning_rate_fraction"}),
    "wsd": frozenset({"final_learning_rate_fraction", "decay_fraction"}),
    "inverse_square_root": frozenset(),
    "constant": frozenset(),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig(FrozenConfig):
    """The optimizer, its learning rate over the run, and the limit of the gradients.

    Fields that the optimizer or the schedule does not use must have their defaults.

    Raises:
        ValueError: If a value is out of its range, or is set but has no effect.
    """

    name: Literal["adam", "adamw", "lamb", "muon", "sgd"] = "adam"
    """Name of the optimizer."""
    schedule: Literal["cosine", "wsd", "inverse_square_root", "constant"] = "cosine"
    """Course of the learning rate after the warm-up. "wsd" is constant, and falls at the end."""
    learning_rate: Annotated[float, positive()] = 2.5e-4
    """Peak of the learning rate, at the end of the warm-up."""
    warmup_steps: Annotated[int, not_negative()] = 0
    """Number `W` of steps in which the learning rate rises linearly: step `k`, counted from 1, has
    `k / W` times the peak."""
    final_learning_rate_fraction: Annotated[float, FRACTION] = 0.004
    """Learning rate of the last step of "cosine" and "wsd", as a fraction of the peak."""
    decay_fraction: Annotated[float, FRACTION_WITHIN] = 0.2
    """Fraction of the steps, at the end, in which "wsd" lowers the learning rate."""
    clip_norm: Annotated[float, positive()] = 0.25
    """Largest global norm of the gradients. Gradients are clipped after the sum over replicas."""
    beta_1: Annotated[float, FRACTION_BELOW_ONE] = 0.9
    """Decay of the running mean of gradients. Unused by "sgd"."""
    beta_2: Annotated[float, FRACTION_BELOW_ONE] = 0.999
    """Decay of the running mean of squared gradients. Unused by "sgd"."""
    epsilon: Annotated[float, positive()] = 1e-8
    """Added to the root of the mean of squares. Unused by "sgd"."""
    weight_decay: Annotated[float, not_negative()] = 0.0
    """Each step shrinks the weights by this times the learning rate. Biases and scales of
    normalisation layers are not shrunk. Unused by "adam"."""
    momentum: Annotated[float | None, FRACTION_BELOW_ONE] = None
    """Decay of the momentum, only for "muon" and "sgd". None means 0.95 for "muon", 0 for "sgd"."""
    max_weight_norm: Annotated[float | None, positive()] = None
    """Limit of a variable's norm in the trust ratio of "lamb". None means no limit."""

    def validate(self) -> None:
        self.require_use("name", _FIELDS_OF_OPTIMIZER)
        self.require_use("schedule", _FIELDS_OF_SCHEDULE)
