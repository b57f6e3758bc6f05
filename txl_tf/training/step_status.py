"""What can become of a training step."""

import enum


class StepStatus(enum.IntEnum):
    """What a step did with its gradients."""

    APPLIED = 1
    """The weights were changed."""
    SKIPPED_NON_FINITE = 2
    """The loss or a gradient was not finite, and the weights were left as they were."""
    SKIPPED_SPIKE = 3
    """The loss or the gradient was out of the ordinary, and the weights were left alone."""
    STOPPED = 4
    """The loss or a gradient was not finite, and nothing at all was changed."""
