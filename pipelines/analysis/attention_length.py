"""One attention length that a trained model is evaluated at."""

import dataclasses
from typing import Any, Self


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionLength:
    """How far back a model may look, and how that is done.

    Attributes:
        length: int. Tokens before the one that is predicted: the memory's
            length with recurrence, the window's without.
        segment_length: int. Tokens per row and step.
        memory_length: int. Tokens remembered.
        same_length: bool. Whether every query sees equally many keys.
        stride: optional int. Tokens that a window scores; `None` with
            recurrence, where nothing is read twice.
        is_training_length: bool. Whether training used the same lengths.
    """

    length: int
    segment_length: int
    memory_length: int
    same_length: bool
    stride: int | None
    is_training_length: bool

    def to_dict(self) -> dict[str, Any]:
        """The values as plain JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Reads what `to_dict` returned; a missing or unknown key is a TypeError."""
        return cls(**values)
