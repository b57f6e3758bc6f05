"""Tokens from among the most probable."""

from keras import ops

from txl_tf.samplers.random_sampler import RandomSampler


class TopKSampler(RandomSampler):
    """Draws from the softmax over the `k` highest logits.

    Args:
        k: int. Number of candidates; all where the vocabulary is smaller.
            Tokens that tie with the `k`-th are candidates too.
        temperature: float. See `RandomSampler`.

    Raises:
        ValueError: If `k` or `temperature` is not positive.
    """

    def __init__(self, k=5, temperature=1.0):
        super().__init__(temperature)
        if k <= 0:
            raise ValueError(f"`k` must be positive. Received: k={k}")
        self.k = k

    def candidates(self, logits):
        count = min(self.k, logits.shape[-1])
        lowest = ops.top_k(logits, count)[0][:, -1:]  # [B, 1]
        return ops.where(logits >= lowest, logits, -float("inf"))
