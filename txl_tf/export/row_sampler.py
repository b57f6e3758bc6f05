"""Sampler with settings per row.

Shape letters used in this module: B rows, V vocabulary.
"""

import tensorflow as tf

from txl_tf import functional
from txl_tf.samplers import RandomSampler

_LOWEST_TEMPERATURE = 1e-35


class RowSampler(RandomSampler):
    """Sampler with a temperature, top-k and top-p for each row.

    A row draws what `GreedySampler`, `RandomSampler`, `TopKSampler` or
    `TopPSampler` would draw for the first row of a text written alone, whatever
    the other rows are.

    Args:
        temperature: float tensor `(B,)`. 0 picks the most probable token.
        top_k: int32 tensor `(B,)`. 0 is all tokens.
        top_p: float tensor `(B,)`. 1 is all tokens.
        seed: int32 tensor `(B,)`.

    Call arguments:
        logits: float32 tensor `(B, V)`.
        position: int32 scalar. How many tokens were written before.

    Returns:
        Int32 tensor `(B,)`.
    """

    def __init__(
        self, temperature: tf.Tensor, top_k: tf.Tensor, top_p: tf.Tensor, seed: tf.Tensor
    ) -> None:
        # The settings were checked with the request.
        self._is_greedy = tf.equal(temperature, 0.0)
        # Less would make an infinity of every logit.
        temperature = tf.maximum(temperature, _LOWEST_TEMPERATURE)
        self.temperature = tf.where(self._is_greedy, 1.0, temperature)[:, None]
        self._top_k = top_k
        self._top_p = top_p
        self._seed = seed

    def __call__(self, logits, position):
        # What `functional.row_seeds` makes of each row's seed where it is the first row.
        of_zero = functional.row_seeds(tf.stack([0, position]), tf.constant([0]))  # [1, 2]
        seeds = of_zero + tf.stack([self._seed, tf.zeros_like(self._seed)], axis=1)
        logits = tf.ensure_shape(logits, [None, logits.shape[1]])
        drawn = super().__call__(logits, seeds)
        return tf.where(self._is_greedy, tf.argmax(logits, axis=1, output_type=tf.int32), drawn)

    def candidates(self, logits):
        # Sorting a large vocabulary takes longer than all the rest.
        limits_k = tf.reduce_any(self._top_k > 0)
        logits = tf.cond(limits_k, lambda: self._of_top_k(logits), lambda: logits)
        limits_p = tf.reduce_any(self._top_p < 1.0)
        return tf.cond(limits_p, lambda: self._of_top_p(logits), lambda: logits)

    def _of_top_k(self, logits):
        falling = tf.sort(logits, axis=1, direction="DESCENDING")
        place = tf.clip_by_value(self._top_k, 1, logits.shape[1]) - 1
        lowest = tf.gather(falling, place, batch_dims=1)[:, None]
        is_candidate = (logits >= lowest) | (self._top_k <= 0)[:, None]
        return tf.where(is_candidate, logits, -float("inf"))

    def _of_top_p(self, logits):
        order = tf.reverse(tf.argsort(logits, axis=1), axis=[1])  # [B, V]
        probabilities = tf.gather(tf.nn.softmax(logits), order, batch_dims=1)
        # A token counts if those before it do not reach p without it.
        reached_before = tf.cumsum(probabilities, axis=1) - probabilities
        is_candidate = (reached_before < self._top_p[:, None]) | (self._top_p >= 1.0)[:, None]
        is_candidate |= tf.range(logits.shape[1]) == 0
        is_candidate = tf.gather(is_candidate, tf.argsort(order, axis=1), batch_dims=1)
        return tf.where(is_candidate, logits, -float("inf"))
