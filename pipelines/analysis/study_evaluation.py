"""How the models of an ablation are evaluated."""

import dataclasses

from txl_tf.config.frozen_config import FrozenConfig
from txl_tf.config.limits import MAX_TOKENS


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyEvaluation(FrozenConfig):
    """Attention lengths and the text they are measured on.

    A model with recurrence reads segments of the length it was trained with
    and remembers more or fewer tokens. One without reads windows that overlap:
    every window is computed as a whole, and its last `window_stride` tokens are
    scored.

    Raises:
        ValueError: If a value is out of its range.
    """

    split: str = "valid"
    """Split of the data set."""
    num_tokens: int | None = None
    """Tokens from the beginning of the split; None: all of it."""
    memory_lengths: tuple[int, ...] = ()
    """Memory lengths beside that of training; 0 is none at all."""
    window_lengths: tuple[int, ...] = ()
    """Window lengths beside training's segment length, for rows without recurrence."""
    window_stride: int = 1
    """Tokens that a window scores."""
    same_length: bool = True
    """Whether at these memory lengths every query sees equally many keys."""
    tolerance: float = 0.001
    """Share of the best perplexity by which a shorter length may be worse and still reach it."""

    def validate(self) -> None:
        if self.num_tokens is not None and self.num_tokens < 2:
            raise ValueError(
                f"`num_tokens` must be at least 2. Received: num_tokens={self.num_tokens}"
            )
        if self.window_stride <= 0:
            raise ValueError(
                f"`window_stride` must be positive. Received: window_stride={self.window_stride}"
            )
        if any(length > MAX_TOKENS for length in (*self.memory_lengths, *self.window_lengths)):
            raise ValueError(
                f"`memory_lengths` and `window_lengths` must be at most {MAX_TOKENS}. Received: "
                f"memory_lengths={self.memory_lengths}, window_lengths={self.window_lengths}"
            )
        if any(length < 0 for length in self.memory_lengths):
            raise ValueError(
                "`memory_lengths` must not be negative. "
                f"Received: memory_lengths={self.memory_lengths}"
            )
        if any(length < self.window_stride for length in self.window_lengths):
            raise ValueError(
                "`window_lengths` must not be less than `window_stride`. "
                f"Received: window_lengths={self.window_lengths}, "
                f"window_stride={self.window_stride}"
            )
        if not 0.0 <= self.tolerance < 1.0:
            raise ValueError(f"`tolerance` must be in [0, 1). Received: tolerance={self.tolerance}")
