"""Positions of queries and keys: their encoding, and which keys a query may see."""

import dataclasses
from typing import Any, Literal

from txl_tf import functional
from txl_tf.config.base import FrozenConfig
from txl_tf.config.model import LEARNED_ENCODINGS, ModelConfig, PositionEncoding

_FIELDS_OF_MODEL = {
    "position_encoding": "encoding",
    "num_positions": "num_positions",
    "clamp_length": "clamp_length",
    "same_length": "same_length",
    "same_length_keys": "same_length_keys",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Positions(FrozenConfig):
    """Encoding of positions, and how far back a query attends.

    Positions come in five ways: `"transformer_xl"` (Dai et al., 2019), `"shaw"` and
    `"shaw_two_terms"` (Shaw et al., 2018; see `ShawAttention` and `TwoTermShawAttention`),
    `"learned"`, a table of absolute positions added to the inputs of each block (Al-Rfou et al.,
    2019), and `"sinusoidal"`, added to the inputs of the first block (Vaswani et al., 2017).
    Absolute positions are counted from the end of the segment.

    Raises:
        ValueError: If a value is out of its range, or the size of the table does not match the
            encoding.
    """

    encoding: PositionEncoding = "transformer_xl"
    """One of the five encodings."""
    num_positions: int | None = None
    """Rows `P` of a learned table; farther positions share the last row."""
    clamp_length: int | None = None
    """Distances above this share one sinusoid; None means no clamp."""
    same_length: bool = False
    """True if every query sees the same number of keys."""
    same_length_keys: Literal["memory_and_self", "memory"] = "memory_and_self"
    """This number, see `functional.causal_memory_mask`."""

    def validate(self) -> None:
        has_table = self.encoding in LEARNED_ENCODINGS
        if has_table != (self.num_positions is not None and self.num_positions > 0):
            raise ValueError(
                f"`num_positions` must be positive for {', '.join(LEARNED_ENCODINGS)} "
                "and None for others. "
                f"Received: encoding={self.encoding!r}, num_positions={self.num_positions}"
            )

    @classmethod
    def of_model(cls, config: ModelConfig) -> "Positions":
        """Returns the positions set by a model's configuration."""
        return cls(**{field: getattr(config, name) for name, field in _FIELDS_OF_MODEL.items()})

    def sinusoids(self, key_length: Any, hidden_dim: int, dtype: str) -> Any:
        """Returns the encodings `(K, D)` of the distances `K - 1` to 0."""
        return functional.relative_positional_encoding(
            key_length, hidden_dim, self.clamp_length, dtype=dtype
        )

    def farthest(self, memory_length: int) -> int | None:
        """Returns the largest distance that a query sees; `None` if it sees all."""
        if not self.same_length:
            return None
        return memory_length - (self.same_length_keys == "memory")

    def mask(self, segment_length: Any, memory_length: int, valid_length: Any = None) -> Any:
        """Returns `functional.causal_memory_mask`, bool `(B or 1, 1, T, K)`."""
        return functional.causal_memory_mask(
            segment_length, memory_length, valid_length, self.same_length, self.same_length_keys
        )
