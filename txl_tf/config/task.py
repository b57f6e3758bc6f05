"""Settings of a fine-tuning task."""

import dataclasses
from typing import Annotated, Literal

from txl_tf.config.base import FRACTION_BELOW_ONE, FrozenConfig, positive
from txl_tf.config.limits import MAX_TOKENS

TaskKind = Literal["classification", "regression"]
"""Kinds of tasks. The kind determines the loss and the form of the answers."""
LOWER_IS_BETTER = frozenset({"mean_squared_error"})
"""Metrics of tasks whose lowest value is the best."""
_MAX_LABELS = 65_536
_FIELDS_OF_TASK = {
    "classification": frozenset({"labels", "class_weights"}),
    "regression": frozenset(),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig(FrozenConfig):
    """Task on texts: the answers, and how the texts of an example are joined and read.

    Raises:
        ValueError: If a value is out of its range, or does not fit the kind.
    """

    kind: TaskKind
    """Kind of the answers: a class or a number for each example."""
    labels: tuple[str, ...] | None = None
    """Classes in the order of the outputs, only for "classification"."""
    metric: str
    """Name of the metric that selects the best step; it is computed on the validation examples."""
    has_pairs: bool = False
    """Whether an example is a pair of texts; an export then takes two texts."""
    pooling: Literal["last", "mean"] = "last"
    """Input of the head: the state of the last token, or the mean of the states of all tokens."""
    separator: str = "\n"
    """Text between the texts of an example, and after the last one."""
    max_tokens: Annotated[int | None, positive(MAX_TOKENS)] = None
    """Number of tokens that are read from the beginning of a text. None means all tokens."""
    head_dropout: Annotated[float, FRACTION_BELOW_ONE] = 0.1
    """Dropout rate on the inputs of the head."""
    class_weights: tuple[float, ...] | None = None
    """Weight of the loss of each class, in the order of `labels`. None means equal weights."""

    def validate(self) -> None:
        self.require_use("kind", _FIELDS_OF_TASK)
        if self.kind != "classification":
            return
        labels, weights = self.labels or (), self.class_weights
        self.require("labels", 2 <= len(labels) <= _MAX_LABELS, f"name 2 to {_MAX_LABELS} classes")
        self.require("labels", len(set(labels)) == len(labels), "name each class once")
        self.require("labels", all(labels), "have no empty name")
        if weights is not None:
            self.require("class_weights", len(weights) == len(labels), "have one weight per label")
            is_usable = min(weights) >= 0.0 and max(weights) > 0.0
            self.require("class_weights", is_usable, "have no negative weight, and one above 0")

    @property
    def num_outputs(self) -> int:
        """Number of outputs of the head."""
        return len(self.labels) if self.labels is not None else 1
