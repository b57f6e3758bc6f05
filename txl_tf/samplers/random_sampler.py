"""Tokens as often as the model thinks they come."""

from keras import ops

from txl_tf import functional


class RandomSampler:
    """Draws from the softmax of the logits.

    Random numbers are a hash of the seed, the row and the token, so a row's
    draw depends neither on the other rows nor on the backend.

    Args:
        temperature: float. Divides the logits: below 1 the probable becomes
            more probable, above 1 less.

    Call arguments:
        logits: float tensor `(B, V)`.
        seed: int32 tensor `(2,)`, or `(B, 2)` with a seed for each row from
            `functional.row_seeds`. The same seed draws the same tokens.

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
        if len(seed.shape) == 1:
            seed = functional.row_seeds(seed, ops.arange(ops.shape(logits)[0], dtype="int32"))
        # The largest of logits plus Gumbel noise is a draw from their softmax.
        noise = _gumbel(functional.random_bits(seed, (logits.shape[1],)))  # [B, V]
        return ops.cast(ops.argmax(candidates + noise, axis=-1), "int32")

    def candidates(self, logits):
        """Logits with those that must not be drawn at minus infinity."""
        return logits


def _gumbel(bits):
    """Gumbel noise of uniform bits.

    Small numbers are those that win, and the ones that float32 tells apart.
    """
    # Signed numbers are the ones that every backend converts to floats.
    high = ops.right_shift(bits, ops.convert_to_tensor(8, dtype="uint32"))
    low = ops.bitwise_and(bits, ops.convert_to_tensor(255, dtype="uint32"))
    high, low = (ops.cast(ops.cast(each, "int32"), "float32") for each in (high, low))
    uniform = (high * 256.0 + low + 0.5) * 2.0**-32
    uniform = ops.minimum(uniform, 1.0 - 2.0**-24)  # rounding must not reach 1
    return -ops.log(-ops.log1p(-uniform))
