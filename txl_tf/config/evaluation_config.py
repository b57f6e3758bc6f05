"""The configuration of an evaluation."""

import dataclasses
from typing import Literal

from txl_tf.config.frozen_config import FrozenConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig(FrozenConfig):
    """Rows and lengths of an evaluation; they may differ from training's.

    Raises:
        ValueError: If a value is out of its range.
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

    def validate(self) -> None:
        for name in ("batch_size", "segment_length", "clamp_length"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"`{name}` must be positive. Received: {name}={value}")
        if self.memory_length is not None and self.memory_length < 0:
            raise ValueError(
                "`memory_length` must not be negative. "
                f"Received: memory_length={self.memory_length}"
            )
