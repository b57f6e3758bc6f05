"""What the host learns after every loop of steps on the device."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopReport:
    """Figures of the steps since the last report."""

    step: int
    """Steps done since the run began."""
    num_steps: int
    """Steps in this loop."""
    num_tokens: int
    """Tokens trained on in this loop, all replicas together."""
    nats_per_token: float
    """Mean loss of the loop."""
    gradient_norm: float
    """Mean global norm of the gradients before clipping."""
    learning_rate: float
    """Learning rate of the next step."""
    seconds: float
    """Wall time of the loop."""
    has_compiled: bool
    """Whether the wall time includes tracing and compiling."""

    @property
    def perplexity(self) -> float:
        """Exponential of the mean loss."""
        return math.exp(min(self.nats_per_token, 700.0))

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all replicas per second of wall time."""
        return self.num_tokens / self.seconds
