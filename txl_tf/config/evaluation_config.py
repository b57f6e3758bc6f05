"""The configuration of an evaluation."""

import dataclasses
from typing import Literal

from txl_tf.config.frozen_config import FrozenConfig
from txl_tf.config.limits import MAX_ROWS, MAX_TOKENS

_DYNAMIC = ("dynamic_decay", "dynamic_statistics_segments", "dynamic_epsilon")
_LIMITS = {
    "batch_size": MAX_ROWS,
    "segment_length": MAX_TOKENS,
    "memory_length": MAX_TOKENS,
    "clamp_length": 2**31 - 1,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig(FrozenConfig):
    """Rows and lengths of an evaluation; they may differ from training's.

    With `warm_up_tokens="all"` the figures are those of a single row, whatever
    the `batch_size`. With a memory that holds the whole text they are those of
    one pass over it, and the `segment_length` makes no difference either. With
    less memory it makes one, because a token sees its segment besides the
    memory; with `same_length` all tokens see equally far, and again it makes
    none, unless positions are counted from the end of the segment, as
    "sinusoidal" and "learned" ones are.

    Raises:
        ValueError: If a value is out of its range, or does not fit the others.
    """

    batch_size: int = 10
    """Rows that are read side by side, each from its own place in the split."""
    segment_length: int | None = None
    """Tokens per row per step, `T`; None takes the model's."""
    memory_length: int | None = None
    """Remembered tokens, `M`; None takes the model's."""
    clamp_length: int | None = None
    """Largest distance with an encoding of its own; None takes the model's.

    A length of `T + M` or more clamps nothing."""
    same_length: bool | None = None
    """Whether every query sees equally many positions; None takes the model's."""
    same_length_keys: Literal["memory_and_self", "memory"] | None = None
    """How many these are; None takes the model's."""
    warm_up_tokens: int | Literal["all"] | None = None
    """Tokens that a row reads before its first scored one, where there are so many; None is 0.

    `M` of them fill the memory. "all" is as many as can make a difference, about `L` times
    `M + T`. Rounded up so that all rows are cut into segments at multiples of `T`."""
    dynamic_learning_rate: float | None = None
    """Rate at which weights follow the text, see `DynamicUpdate`; None: they are fixed."""
    dynamic_decay: float | None = None
    """Part of the way back to the trained weights after each segment; None is 0."""
    dynamic_statistics_segments: int | None = None
    """Segments of the split `train` that gradients are scaled by; None: they are not scaled."""
    dynamic_epsilon: float | None = None
    """Added to the scale of the gradients; None is 1e-3."""

    def validate(self) -> None:
        self.check_at_most(_LIMITS)
        for name in (
            "batch_size",
            "segment_length",
            "clamp_length",
            "dynamic_statistics_segments",
            "dynamic_epsilon",
        ):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"`{name}` must be positive. Received: {name}={value}")
        for name in ("memory_length", "warm_up_tokens", "dynamic_learning_rate"):
            value = getattr(self, name)
            if value not in (None, "all") and value < 0:
                raise ValueError(f"`{name}` must not be negative. Received: {name}={value}")
        if self.dynamic_decay is not None and not 0.0 <= self.dynamic_decay <= 1.0:
            raise ValueError(
                "`dynamic_decay` must be between 0 and 1. "
                f"Received: dynamic_decay={self.dynamic_decay}"
            )
        self._check_dynamic()

    def _check_dynamic(self) -> None:
        if self.dynamic_learning_rate is None:
            for name in _DYNAMIC:
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"`{name}` needs a `dynamic_learning_rate`. "
                        f"Received: {name}={getattr(self, name)}"
                    )
        elif self.batch_size != 1:
            raise ValueError(
                "`dynamic_learning_rate` needs a `batch_size` of 1: with more rows the weights "
                f"would learn from later parts of the text. Received: batch_size={self.batch_size}"
            )
        if self.dynamic_epsilon is not None and self.dynamic_statistics_segments is None:
            raise ValueError(
                "`dynamic_epsilon` needs `dynamic_statistics_segments`. "
                f"Received: dynamic_epsilon={self.dynamic_epsilon}"
            )
