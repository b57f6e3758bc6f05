"""Configuration of the optimizer: its name, learning rate and clipping."""

import dataclasses
from typing import Annotated, Literal

from txl_tf.config import settings
from txl_tf.config.base import FrozenConfig

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
    learning_rate: Annotated[float, settings.positive()] = 2.5e-4
    """Peak, reached at the end of the warm-up."""
    warmup_steps: Annotated[int, settings.not_negative()] = 0
    """Steps over which the learning rate rises linearly from 0."""
    final_learning_rate_fraction: Annotated[float, settings.FRACTION] = 0.004
    """The floor of "cosine" and "plateau", as a fraction of the peak."""
    plateau_factor: Annotated[float, settings.FRACTION_WITHIN] = 0.5
    """What "plateau" multiplies the learning rate by."""
    plateau_patience: Annotated[int, settings.not_negative()] = 0
    """Evaluations without improvement in a row that "plateau" lets pass."""
    clip_norm: Annotated[float, settings.positive()] = 0.25
    """Largest global norm of the gradients, after the all-reduce."""
    beta_1: Annotated[float, settings.FRACTION_BELOW_ONE] = 0.9
    """Decay of the running mean of the gradients; not of "adafactor" and "sgd"."""
    beta_2: Annotated[float, settings.FRACTION_BELOW_ONE] = 0.999
    """Decay of the running mean of their squares; not of "adafactor" and "sgd"."""
    epsilon: Annotated[float, settings.positive()] = 1e-8
    """Added to the root of the second mean; not of "adafactor" and "sgd"."""
    weight_decay: Annotated[float, settings.not_negative()] = 0.0
    """Share of the learning rate by which weights shrink each step, without biases and scales of
    norms; not of "adam"."""
    momentum: Annotated[float | None, settings.FRACTION_BELOW_ONE] = None
    """Decay of the sum of the gradients of "muon" and "sgd"; None: 0.95 and 0."""
    nesterov: bool = False
    """Whether "sgd" takes the gradient once more after the momentum."""
    max_weight_norm: Annotated[float | None, settings.positive()] = None
    """Largest norm that "lamb" takes a variable to have; None: no limit."""

    layer_rate_decay: Annotated[float | None, settings.FRACTION_WITHIN] = None
    """What the learning rate of a layer is multiplied by for each layer above it; the embedding is
    the lowest. None: all learn at one rate."""

    def validate(self) -> None:
        self._check_use("name", _FIELDS_OF_OPTIMIZER)
        self._check_use("schedule", _FIELDS_OF_SCHEDULE)
        if self.nesterov and not self.momentum:
            self.refuse("`nesterov` needs a momentum.", "momentum")

    def _check_use(self, chooser: str, fields_of_choice: dict[str, frozenset[str]]) -> None:
        choice = getattr(self, chooser)
        unused = frozenset().union(*fields_of_choice.values()) - fields_of_choice[choice]
        for field in dataclasses.fields(self):
            if field.name in unused and getattr(self, field.name) != field.default:
                users = [name for name, used in fields_of_choice.items() if field.name in used]
                reason = f"`{field.name}` is for `{chooser}` {' or '.join(users)}, not used here."
                self.refuse(reason, field.name, chooser)
