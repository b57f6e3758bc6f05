"""A learning rate that stays where it is until validation stands still."""

import keras
from keras import ops

from txl_tf.training.plateau_scale import PlateauScale


@keras.saving.register_keras_serializable(package="txl_tf")
class WarmupPlateau(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly to a peak, times a multiplier that is lowered from outside.

    Args:
        peak: float. Learning rate at the end of the warm-up.
        warmup_steps: int. Steps of the rise; 0 starts at the peak.
        plateau_scale: `PlateauScale`, the multiplier. It is lowered by calls
            of its `observe`.

    Call arguments:
        step: int tensor. Number of updates made so far.

    Returns:
        Float32 scalar tensor.

    Raises:
        ValueError: If the number of steps is negative.
    """

    def __init__(self, peak, warmup_steps, plateau_scale):
        super().__init__()
        if warmup_steps < 0:
            raise ValueError(
                f"`warmup_steps` must not be negative. Received: warmup_steps={warmup_steps}"
            )
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.plateau_scale = plateau_scale

    def __call__(self, step):
        rate = self.peak * ops.convert_to_tensor(self.plateau_scale.scale)
        if not self.warmup_steps:
            return rate
        step = ops.cast(step, "float32")
        return rate * ops.minimum(step / self.warmup_steps, 1.0)

    def get_config(self):
        return {
            "peak": self.peak,
            "warmup_steps": self.warmup_steps,
            "plateau_scale": self.plateau_scale.get_config(),
        }

    @classmethod
    def from_config(cls, config):
        plateau_scale = PlateauScale(**config["plateau_scale"])
        return cls(**{**config, "plateau_scale": plateau_scale})
