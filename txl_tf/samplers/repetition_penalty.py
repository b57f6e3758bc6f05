"""Makes what was said already less probable."""

from keras import ops


class RepetitionPenalty:
    """Lowers the scores of tokens that were used.

    Keskar et al. (2019), Section 4.1: scores of used tokens are divided by the
    penalty. A score can have either sign and be shifted by any constant, while
    the result must be less probable; so the scores here are log-probabilities,
    which are never positive, and are multiplied.

    Args:
        penalty: float, at least 1. 1 changes nothing, 1.2 is usual.

    Call arguments:
        logits: float tensor `(B, V)`.
        is_used: bool tensor `(B, V)`. True for tokens that were used.

    Returns:
        Float32 tensor `(B, V)` for a sampler.

    Raises:
        ValueError: If `penalty` is less than 1.

    References:
     - [Keskar et al., 2019](https://arxiv.org/abs/1909.05858)
    """

    def __init__(self, penalty=1.2):
        if not 1.0 <= penalty < float("inf"):
            raise ValueError(
                f"`penalty` must be at least 1 and finite. Received: penalty={penalty}"
            )
        self.penalty = penalty

    def __call__(self, logits, is_used):
        log_probs = ops.log_softmax(ops.cast(logits, "float32"), axis=-1)
        return ops.where(is_used, log_probs * self.penalty, log_probs)
