"""What can be chosen of an export."""

import dataclasses
from typing import Literal

_POSITIVE = ("max_text_bytes", "max_tokens", "max_new_tokens", "num_candidates")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """How weights are stored, and what a request may ask for.

    Raises:
        ValueError: If a limit is not positive, or a dtype is not known.
    """

    weights: Literal["float32", "bfloat16", "int8"] = "float32"
    """How matrices are stored; whatever it is, the arithmetic is float32."""
    memory_dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of memory in requests and answers."""
    max_text_bytes: int = 1 << 16
    """The longest text of a request, in bytes."""
    max_tokens: int = 1 << 16
    """The most tokens per row of a request."""
    max_new_tokens: int = 1024
    """The most tokens that a request may have written."""
    num_candidates: int = 16
    """Tokens of which `next_token` gives the probability; all where there are fewer."""

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise ValueError(f"`{name}` must be positive. Received: {getattr(self, name)}")
        if self.weights not in ("float32", "bfloat16", "int8"):
            raise ValueError(
                '`weights` must be "float32", "bfloat16" or "int8". '
                f"Received: weights={self.weights!r}"
            )
        if self.memory_dtype not in ("float32", "bfloat16"):
            raise ValueError(
                '`memory_dtype` must be "float32" or "bfloat16". '
                f"Received: memory_dtype={self.memory_dtype!r}"
            )
