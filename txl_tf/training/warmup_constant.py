"""A learning rate that stays where the warm-up ends."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="txl_tf")
class WarmupConstant(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly to a peak and stays there.

    Args:
        peak: float. Learning rate from the end of the warm-up on.
        warmup_steps: int. Steps of the rise; 0 starts at the peak.

    Call arguments:
        step: int tensor. Number of updates made so far.

    Returns:
        Float32 scalar tensor.

    Raises:
        ValueError: If the number of steps is negative.
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
        if not self.warmup_steps:
            return ops.convert_to_tensor(self.peak, "float32")
        step = ops.cast(step, "float32")
        return self.peak * ops.minimum(step / self.warmup_steps, 1.0)

    def get_config(self):
        return {"peak": self.peak, "warmup_steps": self.warmup_steps}
