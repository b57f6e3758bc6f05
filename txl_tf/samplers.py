"""Samplers for generation: greedy, random, top-k, top-p, min-p and beam search.

Shape letters used in this module: B rows, W beams of each, V vocabulary.
"""

import math
from collections.abc import Callable
from typing import Any

from keras import ops

from txl_tf import functional
from txl_tf.errors import did_you_mean
from txl_tf.hashed_bits import random_bits

IMPOSSIBLE_SCORE = -1e30
"""Score of a beam that is none; any other is higher."""

_LOWEST_TEMPERATURE = 1e-35


class BeamSampler:
    """Beam search step: keeps the best `num_beams` continuations of each row.

    A beam's score is the sum of the log-probabilities of its tokens. A beam
    that ended keeps its score and its place among the others.

    Args:
        num_beams: int. `W`.
        return_all_beams: bool. Whether generation returns all beams of a row,
            best first, or the best alone.

    Call arguments:
        log_probs: float tensor `(B, W, V)` of the next token of each beam.
        scores: float32 tensor `(B, W)`, from `initial_scores` or a call.
        is_finished: bool tensor `(B, W)`. True for beams that ended.

    Returns:
        Tuple of the scores `(B, W)`, best first; the beam that each one goes on
        from, int32 `(B, W)`; and its token, int32 `(B, W)`, which means
        nothing for a beam that ended.

    Raises:
        ValueError: If `num_beams` is not positive.
    """

    def __init__(self, num_beams=5, return_all_beams=False):
        if num_beams <= 0:
            raise ValueError(f"`num_beams` must be positive. Received: num_beams={num_beams}")
        self.num_beams = num_beams
        self.return_all_beams = return_all_beams

    def initial_scores(self, num_rows):
        """Scores before the first token: all beams of a row are the same one.

        Args:
            num_rows: int. `B`.

        Returns:
            Float32 tensor `(B, W)`.
        """
        is_first = ops.arange(self.num_beams) == 0
        scores = ops.where(is_first, 0.0, IMPOSSIBLE_SCORE)
        return ops.tile(ops.cast(scores, "float32")[None], [num_rows, 1])

    def __call__(self, log_probs, scores, is_finished):
        vocabulary_size = log_probs.shape[-1]
        # A beam that ended has one way to go on, which costs nothing.
        is_first = ops.arange(vocabulary_size) == 0
        unchanged = ops.cast(ops.where(is_first, 0.0, IMPOSSIBLE_SCORE), "float32")
        log_probs = ops.where(
            ops.expand_dims(is_finished, 2), unchanged, ops.cast(log_probs, "float32")
        )
        totals = ops.expand_dims(scores, 2) + log_probs  # [B, W, V]
        totals = ops.reshape(totals, [-1, self.num_beams * vocabulary_size])
        scores, places = ops.top_k(totals, self.num_beams)
        places = ops.cast(places, "int32")
        return scores, places // vocabulary_size, places % vocabulary_size


class GreedySampler:
    """Greedy sampler: the token with the highest logit, the first of equals.

    Call arguments:
        logits: float tensor `(B, V)`.
        seed: int32 tensor `(2,)` or `(B, 2)`; not used.

    Returns:
        Int32 tensor `(B,)`.
    """

    def __call__(self, logits, seed):
        del seed
        return ops.cast(ops.argmax(logits, axis=-1), "int32")


def _is_per_row(setting):
    return len(getattr(setting, "shape", ())) > 0


class RandomSampler:
    """Sampler from the softmax of the logits.

    Random numbers are a hash of the seed, the row and the token, so a row's
    draw depends neither on the other rows nor on the backend.

    Args:
        temperature: float, or float tensor `(B,)`. Divides the logits: below 1
            the probable becomes more probable, above 1 less. In a tensor 0 is
            the most probable token always; its values are not checked.

    Call arguments:
        logits: float tensor `(B, V)`.
        seed: int32 tensor `(2,)`, or `(B, 2)` with a seed for each row from
            `functional.row_seeds`. The same seed draws the same tokens.

    Returns:
        Int32 tensor `(B,)`.

    Raises:
        ValueError: If `temperature` is a number and not positive.
    """

    def __init__(self, temperature=1.0):
        if not _is_per_row(temperature) and not temperature > 0:  # nan is not
            raise ValueError(
                "`temperature` must be positive; `GreedySampler` is its limit at 0. "
                f"Received: temperature={temperature}"
            )
        self.temperature = temperature

    def __call__(self, logits, seed):
        logits, temperature = ops.cast(logits, "float32"), self.temperature
        is_per_row = _is_per_row(temperature)
        if is_per_row:
            is_greedy = ops.equal(temperature, 0.0)
            # Less would make an infinity of every logit.
            temperature = ops.maximum(temperature, _LOWEST_TEMPERATURE)
            temperature = ops.expand_dims(ops.where(is_greedy, 1.0, temperature), 1)
        candidates = self.candidates(logits / temperature)
        if len(seed.shape) == 1:
            seed = functional.row_seeds(seed, ops.arange(ops.shape(logits)[0], dtype="int32"))
        # The largest of logits plus Gumbel noise is a draw from their softmax.
        noise = _gumbel(random_bits(seed, (logits.shape[1],)))  # [B, V]
        drawn = ops.cast(ops.argmax(candidates + noise, axis=-1), "int32")
        if not is_per_row:
            return drawn
        return ops.where(is_greedy, ops.cast(ops.argmax(logits, axis=-1), "int32"), drawn)

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


class MinPSampler(RandomSampler):
    """Min-p sampler: tokens with at least `min_p` of the highest probability.

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


class RepetitionPenalty:
    """Penalty that lowers the scores of tokens that were used.

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


class TopKSampler(RandomSampler):
    """Top-k sampler: the softmax over the `k` highest logits.

    Args:
        k: int, or int32 tensor `(B,)`. Number of candidates; all where the
            vocabulary is smaller. Tokens that tie with the `k`-th are candidates
            too. In a tensor 0 is all tokens; its values are not checked.
        temperature: float or float tensor `(B,)`. See `RandomSampler`.

    Raises:
        ValueError: If `k` or `temperature` is a number and not positive.
    """

    def __init__(self, k=5, temperature=1.0):
        super().__init__(temperature)
        if not _is_per_row(k) and k <= 0:
            raise ValueError(f"`k` must be positive. Received: k={k}")
        self.k = k

    def candidates(self, logits):
        if not _is_per_row(self.k):
            lowest = ops.top_k(logits, min(self.k, logits.shape[-1]))[0][:, -1:]  # [B, 1]
            return ops.where(logits >= lowest, logits, -float("inf"))
        # Sorting a large vocabulary takes longer than all the rest.
        limits = ops.any(self.k > 0)
        return ops.cond(limits, lambda: self._candidates_of_rows(logits), lambda: logits)

    def _candidates_of_rows(self, logits):
        vocabulary_size = logits.shape[-1]
        falling = ops.top_k(logits, vocabulary_size)[0]
        # Without a limit the last of all is the lowest, and so all are candidates.
        k = ops.expand_dims(ops.where(self.k > 0, self.k, vocabulary_size), 1)
        is_among_highest = ops.arange(vocabulary_size, dtype="int32") < k
        highest = ops.where(is_among_highest, falling, float("inf"))
        return ops.where(logits >= ops.min(highest, axis=-1, keepdims=True), logits, -float("inf"))


class TopPSampler(RandomSampler):
    """Top-p sampler: the fewest tokens whose probabilities sum to `p` or more.

    Holtzman et al. (2020), the nucleus.

    Args:
        p: float in `(0, 1]`, or float tensor `(B,)`. The probability to reach. The
            most probable token is always a candidate. In a tensor 1 is all
            tokens; its values are not checked.
        temperature: float or float tensor `(B,)`. See `RandomSampler`; applied
            before `p`.
        k: optional int, or int32 tensor `(B,)`. Only the `k` highest logits are
            considered, before `p`, see `TopKSampler`. That is faster with a large
            vocabulary.

    Raises:
        ValueError: If `p` is a number and out of range, or `k` or `temperature`
            is one and not positive.

    References:
     - [Holtzman et al., 2020](https://arxiv.org/abs/1904.09751)
    """

    def __init__(self, p=0.9, temperature=1.0, k=None):
        super().__init__(temperature)
        if not _is_per_row(p) and not 0.0 < p <= 1.0:
            raise ValueError(f"`p` must be in (0, 1]. Received: p={p}")
        self.p = p
        self.k = k
        self._top_k = None if k is None else TopKSampler(k)

    def candidates(self, logits):
        if self._top_k is not None:
            logits = self._top_k.candidates(logits)
        if not _is_per_row(self.p):
            return self._nucleus(logits, self.p)
        # Rounded sums could leave out a token of a row that has no limit.
        p = ops.expand_dims(ops.where(self.p >= 1.0, float("inf"), self.p), 1)
        return ops.cond(ops.any(self.p < 1.0), lambda: self._nucleus(logits, p), lambda: logits)

    def _nucleus(self, logits, p):
        num_rows, vocabulary_size = ops.shape(logits)
        firsts = ops.arange(num_rows, dtype="int32")[:, None] * vocabulary_size

        def of_rows(tensor, places):
            # `take_along_axis` makes a far larger graph.
            return ops.take(ops.reshape(tensor, [-1]), firsts + places)

        order = ops.flip(ops.argsort(logits, axis=-1), axis=-1)  # [B, V]
        probabilities = of_rows(ops.softmax(logits, axis=-1), order)
        # A token counts if those before it do not reach p without it.
        reached_before = ops.cumsum(probabilities, axis=-1) - probabilities
        is_candidate = ops.logical_or(reached_before < p, ops.arange(vocabulary_size) == 0)
        is_candidate = of_rows(is_candidate, ops.argsort(order, axis=-1))
        return ops.where(is_candidate, logits, -float("inf"))


_BY_NAME: dict[str, Callable[[], Any]] = {
    "beam": BeamSampler,
    "greedy": GreedySampler,
    "min_p": MinPSampler,
    "random": RandomSampler,
    "top_k": TopKSampler,
    "top_p": TopPSampler,
}


def get(sampler: Any) -> Any:
    """Returns a sampler by its name, or the sampler that is given.

    Args:
        sampler: `"beam"`, `"greedy"`, `"min_p"`, `"random"`, `"top_k"` or `"top_p"`, with
            the default settings of its class; or a sampler.

    Returns:
        The sampler.

    Raises:
        ValueError: If there is no sampler of this name.
        TypeError: If it is neither a name nor a sampler.

    Example:
    ```python
    sampler = txl_tf.samplers.get("top_p")
    ```
    """
    if not isinstance(sampler, str):
        if callable(sampler) and not isinstance(sampler, type):
            return sampler
        raise TypeError(
            "`sampler` must be a name or an object of `txl_tf.samplers`, such as "
            f"`TopPSampler(0.9)`. Received: sampler={sampler!r}"
        )
    if sampler not in _BY_NAME:
        raise ValueError(
            f"`sampler` must be one of {', '.join(_BY_NAME)}.{did_you_mean(sampler, _BY_NAME)} "
            f"Received: sampler={sampler!r}"
        )
    return _BY_NAME[sampler]()


__all__ = [
    "BeamSampler",
    "GreedySampler",
    "MinPSampler",
    "RandomSampler",
    "RepetitionPenalty",
    "TopKSampler",
    "TopPSampler",
    "get",
]
