"""Tokens from the smallest set that holds most of the probability."""

from keras import ops

from txl_tf.samplers.random_sampler import RandomSampler
from txl_tf.samplers.top_k_sampler import TopKSampler


class TopPSampler(RandomSampler):
    """Draws from the fewest tokens whose probabilities reach `p` together.

    Holtzman et al. (2020), the nucleus.

    Args:
        p: float in `(0, 1]`. The probability to reach. The most probable token
            is always a candidate.
        temperature: float. See `RandomSampler`; applied before `p`.
        k: optional int. Only the `k` highest logits are considered, before
            `p`. That is faster with a large vocabulary.

    Raises:
        ValueError: If `p` is out of range, or `k` or `temperature` is not
            positive.

    References:
     - [Holtzman et al., 2020](https://arxiv.org/abs/1904.09751)
    """

    def __init__(self, p=0.9, temperature=1.0, k=None):
        super().__init__(temperature)
        if not 0.0 < p <= 1.0:
            raise ValueError(f"`p` must be in (0, 1]. Received: p={p}")
        self.p = p
        self.k = k
        self._top_k = None if k is None else TopKSampler(k)

    def candidates(self, logits):
        if self._top_k is not None:
            logits = self._top_k.candidates(logits)
        order = ops.flip(ops.argsort(logits, axis=-1), axis=-1)  # [B, V]
        probabilities = ops.take_along_axis(ops.softmax(logits, axis=-1), order, axis=-1)
        # A token counts if those before it do not reach p without it.
        reached_before = ops.cumsum(probabilities, axis=-1) - probabilities
        is_candidate_in_order = ops.logical_or(
            reached_before < self.p, ops.arange(logits.shape[-1]) == 0
        )
        rank = ops.argsort(order, axis=-1)
        is_candidate = ops.take_along_axis(is_candidate_in_order, rank, axis=-1)
        return ops.where(is_candidate, logits, -float("inf"))
