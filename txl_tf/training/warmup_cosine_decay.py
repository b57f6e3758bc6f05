"""The learning rate of the official code: linear warm-up, then half a cosine."""

import math

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="txl_tf")
class WarmupCosineDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly to a peak, then falls along a cosine to a floor.

    Args:
        peak: float. Learning rate at the end of the warm-up.
        warmup_steps: int. Steps of the rise; 0 starts at the peak.
        num_steps: int. Steps of the whole run; from there on the floor holds.
        final_fraction: float. The floor as a fraction of the peak.

    Call arguments:
        step: int tensor. Number of updates made so far.

    Returns:
        Float32 scalar tensor.

    Raises:
        ValueError: If the warm-up is not shorter than the run.
    """

    def __init__(self, peak, warmup_steps, num_steps, final_fraction=0.0):
        super().__init__()
        if not 0 <= warmup_steps < num_steps:
            raise ValueError(
                "`warmup_steps` must be at least 0 and less than `num_steps`. "
                f"Received: warmup_steps={warmup_steps}, num_steps={num_steps}"
            )
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.num_steps = num_steps
        self.final_fraction = final_fraction

    def __call__(self, step):
        step = ops.cast(step, "float32")
        rise = step / max(self.warmup_steps, 1)
        done = (step - self.warmup_steps) / (self.num_steps - self.warmup_steps)
        cosine = 0.5 * (1.0 + ops.cos(math.pi * ops.clip(done, 0.0, 1.0)))
        fall = self.final_fraction + (1.0 - self.final_fraction) * cosine
        return self.peak * ops.where(step < self.warmup_steps, rise, fall)

    def get_config(self):
        return {
            "peak": self.peak,
            "warmup_steps": self.warmup_steps,
            "num_steps": self.num_steps,
            "final_fraction": self.final_fraction,
        }
