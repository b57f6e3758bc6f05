"""Configuration of a task that a language model is fine-tuned for."""

import dataclasses
from typing import Annotated, Literal

from txl_tf.config.base import (
    FRACTION_BELOW_ONE,
    MAX_TOKENS,
    FrozenConfig,
    positive,
)

TaskKind = Literal["classification", "regression", "choice", "span"]
"""Kinds of tasks: the head of the model, its loss and its answers follow from it."""

SERVED_KINDS: tuple[TaskKind, ...] = ("classification", "regression", "choice")
"""Kinds that a signature of an export answers; spans are answered by `load_task`."""

LOWER_IS_BETTER = frozenset({"mean_squared_error"})
"""Metrics of a task where the lowest value is the best."""

_MAX_LABELS = 65_536


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig(FrozenConfig):
    """Task of texts: its answers, and how a text is put together and read.

    Raises:
        ValueError: If a value is out of its range, or does not fit the kind.
    """

    kind: TaskKind
    """A class or a number for a text, one of several texts, or a span of the text."""
    labels: tuple[str, ...] | None = None
    """Classes in the order of the outputs; of "classification" alone."""
    metric: str
    """Figure of the validation examples that tells the best step."""
    has_pairs: bool = False
    """Whether examples are pairs of texts, so that an export takes two; of "classification" and
    "regression" alone."""
    pooling: Literal["last", "mean"] = "last"
    """What stands for a whole text: the state of its last token, or the mean of all; not of
    "span"."""
    separator: str = "\n"
    """What is put between the texts of an example, and at the end of the last one."""
    max_tokens: Annotated[int | None, positive(MAX_TOKENS)] = None
    """Tokens of a text that are read, from its beginning; None: all, however long it is."""
    head_dropout: Annotated[float, FRACTION_BELOW_ONE] = 0.1
    """Dropout of what the head reads."""
    class_weights: tuple[float, ...] | None = None
    """Weight of the loss of each class, in the order of `labels`; None: all count the same."""
    max_answer_words: Annotated[int, positive(1000)] = 30
    """Longest span that is an answer; of "span" alone."""
    answer_margin: float | None = None
    """Log-probability by which the best span must exceed "no answer"; None: there always is an
    answer. Of "span" alone."""

    def validate(self) -> None:
        if self.kind == "classification":
            labels = self.labels or ()
            self.require("labels", 2 <= len(labels) <= _MAX_LABELS, "name two classes or more")
            self.require("labels", len(set(labels)) == len(labels), "name each class once")
            self.require("labels", all(labels), "not be empty")
        else:
            self.require("labels", self.labels is None, f"be None for {self.kind!r}")
        weights = self.class_weights
        if weights is not None:
            is_one_each = self.labels is not None and len(weights) == len(self.labels)
            self.require("class_weights", is_one_each, "have a number for each label")
            is_usable = min(weights) >= 0.0 and max(weights) > 0.0
            self.require("class_weights", is_usable, "not be negative, nor all 0")
        if self.kind not in ("classification", "regression"):
            self.require("has_pairs", not self.has_pairs, f"be False for {self.kind!r}")
        if self.kind == "span":
            self.require("pooling", self.pooling == "last", "be 'last' for 'span'")
        else:
            for name, default in (("max_answer_words", 30), ("answer_margin", None)):
                is_default = getattr(self, name) == default
                self.require(name, is_default, f"be {default} for {self.kind!r}")

    @property
    def takes_two_texts(self) -> bool:
        """Whether an export takes two texts: a pair, or the beginning of a choice and an option."""
        return self.has_pairs or self.kind == "choice"

    @property
    def num_outputs(self) -> int:
        """Outputs of the head for a text or a choice."""
        return len(self.labels) if self.labels is not None else 1
