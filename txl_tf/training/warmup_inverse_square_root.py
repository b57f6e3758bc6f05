"""A learning rate that falls with the root of the step after a linear warm-up."""

import math

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="txl_tf")
class WarmupInverseSquareRoot(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly to a peak, then falls as `peak * sqrt(warmup_steps / step)`.

    The official code gives the learning rate of step 1 without a warm-up
    instead, which is `peak * sqrt(warmup_steps)`.

    Args:
        peak: float. Learning rate at the end of the warm-up.
        warmup_steps: int. Steps of the rise; 0 falls from step 1 on.

    Call arguments:
        step: int tensor. Number of updates made so far.

    Returns:
        Float32 scalar tensor.

    Raises:
        ValueError: If the number of steps is negative.

    References:
     - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), Section 5.3
    """

    def __init__(self, peak, warmup_steps):
        super().__init__()
        if warmup_steps < 0:
            raise ValueError(
                f"`warmup_steps` must not be negative. Received: warmup_steps={warmup_steps}"
            )
        self.peak = peak
        self.warmup_steps = warmup_steps

    def __call__(self, step):
        step = ops.cast(step, "float32")
        top = max(self.warmup_steps, 1)
        fall = math.sqrt(top) * ops.rsqrt(ops.maximum(step, float(top)))
        return self.peak * ops.where(step < self.warmup_steps, step / top, fall)

    def get_config(self):
        return {"peak": self.peak, "warmup_steps": self.warmup_steps}
