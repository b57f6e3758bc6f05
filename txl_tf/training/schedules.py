"""Learning-rate schedules: warm-up, then constant, cosine, inverse square root or plateau."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

# Relative to the best so far; less counts as no improvement.
_MIN_IMPROVEMENT = 1e-4


def stored_figures(*figures: tuple[str, Any, str]) -> dict[str, keras.Variable]:
    """Creates variables that the host changes and a checkpoint keeps.

    `figures` are tuples of name, initial value and dtype.
    """
    return {
        name: keras.Variable(value, dtype=dtype, trainable=False, autocast=False, name=name)
        for name, value, dtype in figures
    }


class PlateauScale:
    """Multiplier of the learning rate that falls at every plateau.

    It starts as 1. An evaluation is an improvement if it is below the best by more than one part
    in ten thousand. After more than `patience` evaluations in a row without improvement, the
    multiplier falls by `factor`, down to `minimum`, and the count restarts. `variables` hold the
    whole state, so that a compiled step sees a new multiplier without retracing; create them in
    the scope of the strategy.
    """

    def __init__(self, factor: float = 0.5, patience: int = 0, minimum: float = 0.0) -> None:
        if not 0.0 < factor < 1.0 or patience < 0 or not 0.0 <= minimum <= 1.0:
            raise ValueError(
                "`factor` must be in (0, 1), `patience` at least 0 and `minimum` in [0, 1]. "
                f"Received: factor={factor}, patience={patience}, minimum={minimum}"
            )
        self.factor = factor
        self.patience = patience
        self.minimum = minimum
        self.variables = stored_figures(
            ("scale", 1.0, "float32"),
            # Finite, as all values in a checkpoint.
            ("best_nats", np.finfo(np.float32).max, "float32"),
            ("num_bad", 0, "int64"),
        )

    @property
    def scale(self) -> keras.Variable:
        """Multiplier, a float32 scalar."""
        return self.variables["scale"]

    def observe(self, nats_per_token: float) -> bool:
        """Records a validation loss; returns True if the multiplier has fallen.

        The host calls it between loops; workers that train together must all pass the same value.
        NaN is no improvement.
        """
        best, num_bad = self.variables["best_nats"], self.variables["num_bad"]
        # Rounded as it is stored, so that a resumed run compares the same numbers.
        nats = np.float32(nats_per_token)
        if nats < np.float32(best.numpy()) * np.float32(1.0 - _MIN_IMPROVEMENT):
            best.assign(nats)
            num_bad.assign(0)
            return False
        count = int(num_bad.numpy()) + 1
        if count <= self.patience:
            num_bad.assign(count)
            return False
        num_bad.assign(0)
        before = float(self.scale.numpy())
        self.scale.assign(max(before * self.factor, self.minimum))
        return float(self.scale.numpy()) < before

    def get_config(self) -> dict[str, float]:
        """Returns the arguments of the constructor."""
        return {"factor": self.factor, "patience": self.patience, "minimum": self.minimum}


class _WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Schedule that rises linearly to a peak; subclasses define the rest."""

    def __init__(self, peak, warmup_steps):
        super().__init__()
        if warmup_steps < 0:
            raise ValueError(
                f"`warmup_steps` must not be negative. Received: warmup_steps={warmup_steps}"
            )
        self.peak = peak
        self.warmup_steps = warmup_steps

    def _risen(self, rate, step):
        if not self.warmup_steps:
            return rate
        return rate * ops.minimum(ops.cast(step, "float32") / self.warmup_steps, 1.0)

    def get_config(self):
        return {"peak": self.peak, "warmup_steps": self.warmup_steps}


@keras.saving.register_keras_serializable(package="txl_tf")
class WarmupConstant(_WarmupSchedule):
    """Constant learning rate after a linear warm-up; 0 warm-up steps start at the peak."""

    def __call__(self, step):
        return self._risen(ops.convert_to_tensor(self.peak, "float32"), step)


@keras.saving.register_keras_serializable(package="txl_tf")
class WarmupCosineDecay(_WarmupSchedule):
    """Cosine decay to a floor after a linear warm-up.

    The floor is `final_fraction` of the peak, and holds from step `num_steps` of the run on.
    """

    def __init__(self, peak, warmup_steps, num_steps, final_fraction=0.0):
        if not 0 <= warmup_steps < num_steps:
            raise ValueError(
                "`warmup_steps` must be at least 0 and less than `num_steps`. "
                f"Received: warmup_steps={warmup_steps}, num_steps={num_steps}"
            )
        super().__init__(peak, warmup_steps)
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
        own = {"num_steps": self.num_steps, "final_fraction": self.final_fraction}
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable(package="txl_tf")
class WarmupInverseSquareRoot(_WarmupSchedule):
    """Decay as `peak * sqrt(warmup_steps / step)` after a linear warm-up.

    Without a warm-up the decay begins at step 1. The official code is given the learning rate of
    step 1 without a warm-up instead, which is `peak * sqrt(warmup_steps)`. See Vaswani et al.
    (2017), Section 5.3, https://arxiv.org/abs/1706.03762.
    """

    def __call__(self, step):
        step = ops.cast(step, "float32")
        top = max(self.warmup_steps, 1)
        fall = math.sqrt(top) * ops.rsqrt(ops.maximum(step, float(top)))
        return self.peak * ops.where(step < self.warmup_steps, step / top, fall)


@keras.saving.register_keras_serializable(package="txl_tf")
class WarmupPlateau(_WarmupSchedule):
    """Constant learning rate after a linear warm-up, times a `PlateauScale`."""

    def __init__(self, peak, warmup_steps, plateau_scale):
        super().__init__(peak, warmup_steps)
        self.plateau_scale = plateau_scale

    def __call__(self, step):
        return self._risen(self.peak * ops.convert_to_tensor(self.plateau_scale.scale), step)

    def get_config(self):
        return {**super().get_config(), "plateau_scale": self.plateau_scale.get_config()}

    @classmethod
    def from_config(cls, config):
        plateau_scale = PlateauScale(**config["plateau_scale"])
        return cls(**{**config, "plateau_scale": plateau_scale})
