"""Tokens that are not much less probable than the most probable one."""

import math

from keras import ops

from txl_tf.samplers.random_sampler import RandomSampler


class MinPSampler(RandomSampler):
    """Draws from the tokens with at least `min_p` of the highest probability.

    Where the model is certain few tokens remain, where it is not many.

    Args:
        min_p: float in `(0, 1]`. Share of the highest probability.
        temperature: float. See `RandomSampler`; applied before `min_p`.

    Raises:
        ValueError: If `min_p` is out of range or `temperature` is not positive.

    References:
     - [Nguyen et al., 2024](https://arxiv.org/abs/2407.01082)
    """

    def __init__(self, min_p=0.05, temperature=1.0):
        super().__init__(temperature)
        if not 0.0 < min_p <= 1.0:
            raise ValueError(f"`min_p` must be in (0, 1]. Received: min_p={min_p}")
        self.min_p = min_p

    def candidates(self, logits):
        lowest = ops.max(logits, axis=-1, keepdims=True) + math.log(self.min_p)  # [B, 1]
        return ops.where(logits >= lowest, logits, -float("inf"))
