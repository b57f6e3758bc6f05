"""Figures of training steps: outcome, loss, gradient norm and checksum of the tokens."""

import dataclasses
import enum
import statistics

from txl_tf import metrics


class StepStatus(enum.IntEnum):
    """Outcome of a training step: applied, skipped or stopped."""

    APPLIED = 1
    """The weights were changed."""
    SKIPPED_NON_FINITE = 2
    """The loss or a gradient was not finite, and the weights were left as they were."""
    SKIPPED_SPIKE = 3
    """The loss or the gradient was out of the ordinary, and the weights were left alone."""
    STOPPED = 4
    """The loss or a gradient was not finite, and nothing at all was changed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepRecord:
    """Figures of one step."""

    step: int
    """The step, counted from 1."""
    nats_per_token: float
    """Loss, a float32 value."""
    gradient_norm: float
    """Global norm of the gradients before clipping, a float32 value."""
    checksum: int
    """Checksum of the tokens of all rows, see `batch_checksum`."""
    status: StepStatus
    """Outcome of the step."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopReport:
    """Figures of the steps since the last report."""

    records: tuple[StepRecord, ...]
    """The figures of each step, in order; at least one."""
    num_tokens: int
    """Tokens read in this loop, all replicas together."""
    learning_rate: float
    """Learning rate of the next step."""
    seconds: float
    """Wall time of the loop."""
    has_compiled: bool
    """True if the wall time includes tracing and compiling."""
    data_wait_seconds: float | None = None
    """Time that the last step waited for its batch; `None` if not measured."""
    update_ratio: float | None = None
    """Norm of the last update over the norm of the weights; `None` if not measured."""

    @property
    def step(self) -> int:
        """Steps done since the run began."""
        return self.records[-1].step

    @property
    def num_steps(self) -> int:
        """Steps in this loop."""
        return len(self.records)

    @property
    def num_skipped_steps(self) -> int:
        """Steps that left the weights as they were."""
        return sum(record.status != StepStatus.APPLIED for record in self.records)

    @property
    def nats_per_token(self) -> float:
        """Mean loss of the steps that changed the weights; of all if none did."""
        return statistics.fmean(record.nats_per_token for record in self._counted())

    @property
    def gradient_norm(self) -> float:
        """Mean global norm of the gradients before clipping, over the same steps."""
        return statistics.fmean(record.gradient_norm for record in self._counted())

    @property
    def perplexity(self) -> float:
        """Exponential of the mean loss."""
        return metrics.perplexity(self.nats_per_token)

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all replicas per second of wall time."""
        return self.num_tokens / self.seconds

    def _counted(self) -> list[StepRecord]:
        applied = [record for record in self.records if record.status == StepStatus.APPLIED]
        return applied or list(self.records)
