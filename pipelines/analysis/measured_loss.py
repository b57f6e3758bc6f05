"""What a text cost a model at one attention length."""

import dataclasses
import math

# exp() of more is no float64.
_MAX_EXPONENT = 700.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredLoss:
    """Totals, of which all other figures are made.

    Attributes:
        total_nats: float. Sum of the negative log-likelihoods.
        num_tokens: int. Targets scored.
        num_bytes: float. Bytes of text that these stand for.
        seconds: float. Wall time, compiling included.
    """

    total_nats: float
    num_tokens: int
    num_bytes: float
    seconds: float

    @property
    def nats_per_token(self) -> float:
        """Mean negative log-likelihood of a token."""
        return self.total_nats / self.num_tokens

    @property
    def perplexity(self) -> float:
        """Exponential of the mean."""
        return math.exp(min(self.nats_per_token, _MAX_EXPONENT))

    @property
    def bits_per_byte(self) -> float:
        """Bits for each byte of text."""
        return self.total_nats / math.log(2.0) / self.num_bytes

    def describe(self) -> str:
        """The figures in one line."""
        return (
            f"{self.bits_per_byte:.4f} bits/byte, {self.nats_per_token:.4f} nats/token, "
            f"perplexity {self.perplexity:.2f} ({self.num_tokens:,} tokens, "
            f"{self.seconds:.0f} s)"
        )
