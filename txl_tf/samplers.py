"""Samplers for generation by name: greedy, random and beam search; the penalty of repetitions.

Shape letters used in this module: B rows, W beams of each, V vocabulary.
"""

from collections.abc import Callable, Mapping
from typing import Any

from keras import ops

from txl_tf.errors import did_you_mean
from txl_tf.random_sampler import RandomSampler, is_per_row, restricted

IMPOSSIBLE_SCORE = -1e30
"""Score of an unused beam, below all others."""

SETTINGS = {"temperature": "float32", "top_k": "int32", "top_p": "float32", "min_p": "float32"}
"""Arguments of `RandomSampler`, and their types as tensors with a value per row."""


class BeamSampler:
    """Beam search step: keeps the best `num_beams` continuations of each row.

    A beam's score is the sum of the log-probabilities of its tokens. A finished beam keeps its
    score and competes with the others.

    Args:
        num_beams: int. `W`.
        return_all_beams: bool. If `True`, generation returns all beams of a row, best first,
            otherwise only the best.

    Call arguments:
        log_probs: float tensor `(B, W, V)` of the next token of each beam.
        scores: float32 tensor `(B, W)`, from `initial_scores` or a call.
        is_finished: bool tensor `(B, W)`. True for beams that ended.

    Returns:
        Tuple of `(B, W)` tensors: the scores, best first; the index of the beam that each one
        continues, int32; and its token, int32, without meaning for a finished beam.

    Raises:
        ValueError: If `num_beams` is not positive.
    """

    def __init__(self, num_beams=5, return_all_beams=False):
        if num_beams <= 0:
            raise ValueError(f"`num_beams` must be positive. Received: num_beams={num_beams}")
        self.num_beams = num_beams
        self.return_all_beams = return_all_beams

    def initial_scores(self, num_rows):
        """Returns the scores before the first token, float32 `(B, W)`, when beams are equal."""
        is_first = ops.arange(self.num_beams) == 0
        scores = ops.where(is_first, 0.0, IMPOSSIBLE_SCORE)
        return ops.tile(ops.cast(scores, "float32")[None], [num_rows, 1])

    def __call__(self, log_probs, scores, is_finished):
        vocabulary_size = log_probs.shape[-1]
        # A finished beam has one continuation, which costs nothing.
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

    It is called as `RandomSampler`, and does not use the seed.
    """

    def __call__(self, logits, seed):
        del seed
        return ops.cast(ops.argmax(logits, axis=-1), "int32")


class RepetitionPenalty:
    """Penalty that lowers the scores of tokens that were used.

    Keskar et al. (2019), Section 4.1, divide scores by the penalty, which helps a used token with
    a negative score. Here scores are log-probabilities, which are never positive, and are
    multiplied by the penalty: a used token always becomes less probable.

    Args:
        penalty: float, at least 1. 1 changes nothing, 1.2 is usual. Or a tensor `(B,)` with one
            value per row, which is not checked.

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
        if not is_per_row(penalty) and not 1.0 <= penalty < float("inf"):
            raise ValueError(
                f"`penalty` must be at least 1 and finite. Received: penalty={penalty}"
            )
        self.penalty = penalty

    def __call__(self, logits, is_used):
        def lower(logits, penalty):
            log_probs = ops.log_softmax(logits, axis=-1)
            lowered = ops.where(is_used, log_probs * penalty, log_probs)
            # Rounding must not change a row without a penalty.
            return ops.where(penalty == 1.0, logits, lowered) if is_per_row(penalty) else lowered

        return restricted(ops.cast(logits, "float32"), self.penalty, 1.0, lower)


_BY_NAME: dict[str, Callable[[], Any]] = {
    "beam": BeamSampler,
    "greedy": GreedySampler,
    "random": RandomSampler,
}


def get(sampler: Any) -> Any:
    """Returns a sampler by its name, or the given sampler.

    Args:
        sampler: `"beam"`, `"greedy"` or `"random"`, with the default settings of its class; or a
            sampler.

    Raises:
        ValueError: If the name is unknown.
        TypeError: If it is neither a name nor a sampler.
    """
    if callable(sampler) and not isinstance(sampler, type):
        return sampler
    if not isinstance(sampler, str):
        raise TypeError(
            "`sampler` must be a name or an object of `txl_tf.samplers`, such as "
            f"`RandomSampler(top_k=40)`. Received: sampler={sampler!r}"
        )
    if sampler not in _BY_NAME:
        raise ValueError(
            f"`sampler` must be one of {', '.join(_BY_NAME)}.{did_you_mean(sampler, _BY_NAME)} "
            f"Received: sampler={sampler!r}"
        )
    return _BY_NAME[sampler]()


def choose(sampler: Any, settings: Mapping[str, Any], default: Any = None) -> Any:
    """Returns the given sampler, or a `RandomSampler` with those of `SETTINGS` that are given.

    `default` is used if nothing is given. Raises ValueError if a sampler and a setting are given.
    """
    given = {name: settings[name] for name in SETTINGS if name in settings}
    if sampler is None:
        return RandomSampler(**given) if given or default is None else default
    if given:
        raise ValueError(
            f"`sampler` has its own settings; leave out `sampler` or `{next(iter(given))}`. "
            f"Received: sampler={sampler!r}, {given}"
        )
    return get(sampler)


__all__ = ["BeamSampler", "GreedySampler", "RandomSampler", "RepetitionPenalty", "choose", "get"]
