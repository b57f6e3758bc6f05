"""The figures of an evaluation, each with its denominator."""

import dataclasses
import math
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """Totals of a split and what follows from them.

    A split of `n` tokens has `n - 1` targets: nothing comes before the first.
    """

    split: str
    """Name of the split."""
    step: int
    """Training steps of the weights."""
    total_nats: float
    """Sum of the negative log-likelihoods of all targets."""
    num_tokens: int
    """Targets scored."""
    num_bytes: float
    """Bytes of text that these tokens stand for."""
    segment_length: int
    """Tokens per row and step."""
    memory_length: int
    """Tokens remembered."""
    clamp_length: int | None
    """Largest distance with an encoding of its own."""
    same_length: bool
    """Whether every query saw equally many positions."""
    batch_size: int
    """Rows read side by side; each begins with an empty memory."""
    seconds: float
    """Wall time, compiling included."""

    @property
    def nats_per_token(self) -> float:
        """Mean negative log-likelihood of a token."""
        return self.total_nats / self.num_tokens

    @property
    def perplexity(self) -> float:
        """Exponential of the mean: never a mean of perplexities."""
        return math.exp(min(self.nats_per_token, 700.0))

    @property
    def bits_per_byte(self) -> float:
        """Bits for each byte of text; does not depend on the tokenizer."""
        return self.total_nats / math.log(2.0) / self.num_bytes

    def to_dict(self) -> dict[str, Any]:
        """All fields and all figures as plain JSON types."""
        return {
            **dataclasses.asdict(self),
            "nats_per_token": self.nats_per_token,
            "perplexity": self.perplexity,
            "bits_per_byte": self.bits_per_byte,
        }

    def describe(self) -> str:
        """The figures and their conditions in one line."""
        clamp = "none" if self.clamp_length is None else self.clamp_length
        return (
            f"{self.split}: {self.bits_per_byte:.6f} bits/byte, "
            f"{self.nats_per_token:.6f} nats/token, perplexity {self.perplexity:.4f} "
            f"over {self.num_tokens:,} tokens ({self.num_bytes:,.0f} bytes); "
            f"segment {self.segment_length}, memory {self.memory_length}, clamp {clamp}, "
            f"{self.batch_size} rows"
        )
