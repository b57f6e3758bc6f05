"""Always the most probable token."""

from keras import ops


class GreedySampler:
    """Picks the token with the highest logit; the first of equals.

    Call arguments:
        logits: float tensor `(B, V)`.
        seed: int32 tensor `(2,)` or `(B, 2)`; not used.

    Returns:
        Int32 tensor `(B,)`.
    """

    def __call__(self, logits, seed):
        del seed
        return ops.cast(ops.argmax(logits, axis=-1), "int32")
