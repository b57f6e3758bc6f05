"""What a run keeps in mind of its evaluations."""

import math

import numpy as np

from txl_tf.training.plateau_scale import PlateauScale


class EvaluationHistory:
    """The last evaluation and the best one.

    It decides what the run does next, so it belongs into a checkpoint.

    Args:
        plateau_scale: optional `PlateauScale`, which is told every loss. It
            keeps its own state.
    """

    def __init__(self, plateau_scale: PlateauScale | None = None) -> None:
        self._plateau_scale = plateau_scale
        self.last_step = -1
        """Steps done at the last evaluation; -1 before the first."""
        self.best_step = -1
        """Steps done at the best evaluation; -1 before the first."""
        self.best_nats_per_token = math.inf
        """Loss of the best evaluation."""

    def observe(self, step: int, nats_per_token: float) -> bool:
        """Takes in an evaluation.

        Args:
            step: int. Steps done.
            nats_per_token: float. Loss on the validation split.

        Returns:
            Whether it is the best so far.
        """
        self.last_step = step
        if self._plateau_scale is not None:
            self._plateau_scale.observe(nats_per_token)
        if not nats_per_token < self.best_nats_per_token:
            return False
        self.best_step, self.best_nats_per_token = step, nats_per_token
        return True

    def state(self) -> dict[str, np.ndarray]:
        """The history as arrays, by name."""
        return {
            "evaluation/last_step": np.asarray(self.last_step, np.int64),
            "evaluation/best_step": np.asarray(self.best_step, np.int64),
            # Finite, as all that a checkpoint holds.
            "evaluation/best_nats_per_token": np.asarray(
                min(self.best_nats_per_token, np.finfo(np.float64).max), np.float64
            ),
        }

    def load_state(self, arrays: dict[str, np.ndarray]) -> None:
        """Takes up what `state` returned.

        Args:
            arrays: dict of name to array.

        Raises:
            ValueError: If names are missing or too many.
        """
        names = self.state().keys()
        if arrays.keys() != names:
            differing = sorted(names ^ arrays.keys())
            raise ValueError(f"`arrays` must have the names of `state`. Received: {differing}")
        self.last_step = int(arrays["evaluation/last_step"])
        self.best_step = int(arrays["evaluation/best_step"])
        self.best_nats_per_token = float(arrays["evaluation/best_nats_per_token"])
