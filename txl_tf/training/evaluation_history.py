"""Last and best evaluation of a run, which decide when it stops."""

import numpy as np

from txl_tf.config.training import TrainingConfig

# Attributes that checkpoints keep, by their stored names.
_HISTORY = ("last_step", "best_step", "best_nats_per_token")


class EvaluationHistory:
    """Last and best evaluation of a run, which checkpoints keep.

    The steps are -1 before the first evaluation.
    """

    def __init__(self) -> None:
        self.last_step = self.best_step = -1
        # The lowest criterion, of a task too. The name is stored in checkpoints, which also
        # refuse infinity.
        self.best_nats_per_token = float(np.finfo(np.float64).max)

    def observe(self, step: int, criterion: float) -> bool:
        """Records an evaluation of the validation split; returns True if it is the best.

        A lower `criterion` is better: the nats per token of a text, or `TaskResult.criterion`.
        """
        self.last_step = step
        # A NaN is never better.
        if not criterion < self.best_nats_per_token:
            return False
        self.best_step, self.best_nats_per_token = step, criterion
        return True

    def has_stalled(self, training: TrainingConfig) -> bool:
        """True if the last `training.stop_after_evaluations` evaluations were not the best."""
        if training.stop_after_evaluations is None or self.best_step < 0:
            return False
        waited_steps = self.last_step - self.best_step
        return waited_steps >= training.stop_after_evaluations * training.evaluation_period

    def state(self) -> dict[str, np.ndarray]:
        """Returns the history as arrays, by name."""
        return {f"evaluation/{name}": np.asarray(getattr(self, name)) for name in _HISTORY}

    def load_state(self, arrays: dict[str, np.ndarray]) -> None:
        """Restores the arrays of `state` and removes them from `arrays`.

        Raises KeyError if one is missing.
        """
        for name in _HISTORY:
            setattr(self, name, arrays.pop(f"evaluation/{name}").item())
