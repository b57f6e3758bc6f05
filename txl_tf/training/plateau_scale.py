"""Lowers the learning rate when the validation loss no longer falls."""

import keras
import numpy as np

# Of the best so far; less counts as standing still.
_MIN_IMPROVEMENT = 1e-4


class PlateauScale:
    """A multiplier of the learning rate that falls at every plateau.

    It starts as 1. An evaluation is an improvement if it is below the best by
    more than one part in ten thousand. After more than `patience` evaluations
    in a row without one, the multiplier falls by `factor` and the count of
    them starts anew.

    `variables` holds its whole state. They are variables, so that a compiled
    step sees a new multiplier without being traced again. They are created in
    the scope of the strategy this is made in.

    Args:
        factor: float. What the multiplier is multiplied by.
        patience: int. Evaluations without improvement in a row that change
            nothing.
        minimum: float. The floor of the multiplier.

    Raises:
        ValueError: If a value is out of its range.
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
        self.variables = {
            name: keras.Variable(value, dtype=dtype, trainable=False, autocast=False, name=name)
            for name, value, dtype in (
                ("scale", 1.0, "float32"),
                # Finite, as all that a checkpoint holds.
                ("best_nats", np.finfo(np.float32).max, "float32"),
                ("num_bad", 0, "int64"),
            )
        }

    @property
    def scale(self) -> keras.Variable:
        """The multiplier, a float32 scalar."""
        return self.variables["scale"]

    def observe(self, nats_per_token: float) -> bool:
        """Takes in an evaluation; on the host, between loops.

        Workers that train together must all call it with the same value.

        Args:
            nats_per_token: float. The validation loss. What is not a number
                is no improvement.

        Returns:
            Whether the multiplier has fallen.
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
        """Returns the arguments it was made with."""
        return {"factor": self.factor, "patience": self.patience, "minimum": self.minimum}
