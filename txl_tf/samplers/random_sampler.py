"""Tokens as often as the model thinks they come."""

import keras
from keras import ops

from txl_tf.given_seed import GivenSeed


class RandomSampler:
    """Draws from the softmax of the logits.

    Args:
        temperature: float. Divides the logits: below 1 the probable becomes
            more probable, above 1 less.

    Call arguments:
        logits: float tensor `(B, V)`.
        seed: int32 tensor `(2,)`. The same seed draws the same tokens.

    Returns:
        Int32 tensor `(B,)`.

    Raises:
        ValueError: If `temperature` is not positive.
    """

    def __init__(self, temperature=1.0):
        if not temperature > 0:  # nan is not
            raise ValueError(
                "`temperature` must be positive; `GreedySampler` is its limit at 0. "
                f"Received: temperature={temperature}"
            )
        self.temperature = temperature

    def __call__(self, logits, seed):
        candidates = self.candidates(ops.cast(logits, "float32") / self.temperature)
        drawn = keras.random.categorical(candidates, 1, dtype="int32", seed=GivenSeed(seed))
        return ops.squeeze(drawn, axis=-1)

    def candidates(self, logits):
        """Logits with those that must not be drawn at minus infinity."""
        return logits
