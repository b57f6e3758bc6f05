"""The configuration of the optimizer and of its learning rate."""

import dataclasses

from txl_tf.config.frozen_config import FrozenConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig(FrozenConfig):
    """Adam, with linear warm-up and cosine decay to a floor.

    Raises:
        ValueError: If a value is out of its range.
    """

    learning_rate: float = 2.5e-4
    """Peak, reached at the end of the warm-up."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly from 0."""
    final_learning_rate_fraction: float = 0.004
    """The floor of the cosine, as a fraction of the peak."""
    clip_norm: float = 0.25
    """Largest global norm of the gradients, after the all-reduce."""
    beta_1: float = 0.9
    """Decay of the running mean of the gradients."""
    beta_2: float = 0.999
    """Decay of the running mean of their squares."""
    epsilon: float = 1e-8
    """Added to the root of the second mean."""

    def validate(self) -> None:
        for name in ("learning_rate", "clip_norm", "epsilon"):
            if getattr(self, name) <= 0:
                raise ValueError(
                    f"`{name}` must be positive. Received: {name}={getattr(self, name)}"
                )
        for name in ("beta_1", "beta_2"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(
                    f"`{name}` must be in [0, 1). Received: {name}={getattr(self, name)}"
                )
        if not 0.0 <= self.final_learning_rate_fraction <= 1.0:
            raise ValueError(
                "`final_learning_rate_fraction` must be in [0, 1]. Received: "
                f"final_learning_rate_fraction={self.final_learning_rate_fraction}"
            )
        if self.warmup_steps < 0:
            raise ValueError(
                f"`warmup_steps` must not be negative. Received: warmup_steps={self.warmup_steps}"
            )
