"""The figures of one training step, on the host."""

import dataclasses

from txl_tf.training.step_status import StepStatus


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepRecord:
    """The figures of one step."""

    step: int
    """The step, counted from 1."""
    nats_per_token: float
    """Loss, a float32 value."""
    gradient_norm: float
    """Global norm of the gradients before clipping, a float32 value."""
    checksum: int
    """Checksum of the tokens of all rows, see `batch_checksum`."""
    status: StepStatus
    """What the step did."""
