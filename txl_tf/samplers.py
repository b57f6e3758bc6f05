"""Samplers, which choose the next token: random, greedy, beam search.

A sampler is a function of scores `(R, V)` and seeds `(R, 2)` that returns tokens `(R,)`. Only
`BeamSampler` is called in another way: it draws nothing, and it also chooses which row each of its
beams continues.

Shape letters used in this module: B rows, W beams of each, R = B * W, V vocabulary.
"""

from collections.abc import Callable, Mapping
from typing import Any

from keras import ops

from txl_tf import functional
from txl_tf.config.generation import GenerationConfig
from txl_tf.errors import did_you_mean
from txl_tf.stateless_random import random_bits

IMPOSSIBLE_SCORE = -1e30
"""Score of an unused beam, below all others."""

SETTINGS = {"temperature": "float32", "top_k": "int32", "top_p": "float32", "min_p": "float32"}
"""Arguments of `RandomSampler`, and their types as tensors with a value per row."""

_LOWEST_TEMPERATURE = 1e-35


class RandomSampler:
    """Sampler from the softmax of the logits, restricted to the more probable tokens.

    The logits are divided by the temperature. Then `top_k`, `top_p` and `min_p`, in this order,
    each restrict the candidates; a token that ties with the last candidate is one too. Random
    numbers are a hash of the seed and the token, so a row's draw depends neither on the other rows
    nor on the backend.

    A setting may be a tensor or a variable `(B,)` with a value per row, which is not checked.

    Args:
        temperature: float. Values below 1 sharpen the distribution, values above 1 flatten it; 0
            always takes the most probable token.
        top_k: int. Number of candidates; 0 is all.
        top_p: float in `(0, 1]`. Candidates are the fewest tokens whose probabilities
            sum to this or more, the nucleus; 1 is all.
        min_p: float in `[0, 1]`. Candidates have at least this share of the highest
            probability; 0 is all.

    Call arguments:
        logits: float tensor `(B, V)`.
        seed: int32 tensor `(2,)`, or `(B, 2)` from `functional.row_seeds`. The same seed draws
            the same tokens.

    Returns:
        Int32 tensor `(B,)`.

    Raises:
        ValueError: If a setting is out of its range.

    References:
     - [Holtzman et al., 2020](https://arxiv.org/abs/1904.09751), top-p
     - [Nguyen et al., 2024](https://arxiv.org/abs/2407.01082), min-p
    """

    def __init__(self, temperature=1.0, top_k=0, top_p=0.9, min_p=0.0):
        settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
        GenerationConfig(**{name: each for name, each in settings.items() if not is_per_row(each)})
        vars(self).update(settings)

    def __call__(self, logits, seed):
        logits = ops.cast(logits, "float32")
        most_probable = ops.cast(ops.argmax(logits, axis=-1), "int32")
        per_row = is_per_row(self.temperature)
        if not per_row and self.temperature == 0:
            return most_probable
        # A smaller divisor would make every logit infinite.
        temperature = ops.maximum(self.temperature, _LOWEST_TEMPERATURE)
        if per_row:
            is_greedy = ops.equal(self.temperature, 0.0)
            temperature = ops.expand_dims(ops.where(is_greedy, 1.0, temperature), 1)
        candidates = self.candidates(logits / temperature)
        if len(seed.shape) == 1:
            seed = functional.row_seeds(seed, ops.arange(ops.shape(logits)[0], dtype="int32"))
        # The largest of logits plus Gumbel noise is a draw from their softmax.
        noise = _gumbel(random_bits(seed, (logits.shape[1],)))  # [B, V]
        draws = ops.cast(ops.argmax(candidates + noise, axis=-1), "int32")
        return ops.where(is_greedy, most_probable, draws) if per_row else draws

    def candidates(self, logits):
        """Returns the logits, with excluded tokens at minus infinity."""
        logits = restricted(logits, self.top_k, 0, _top_k)
        logits = restricted(logits, self.top_p, 1.0, _top_p)
        return restricted(logits, self.min_p, 0.0, _min_p)


class BeamSampler:
    """Beam search step: keeps the best `num_beams` continuations of each row.

    A beam's total is the sum of the log-probabilities of its tokens. A finished beam keeps its
    total and competes with the others.

    Args:
        num_beams: int. `W`.
        return_all_beams: bool. If `True`, generation returns all beams of a row, best first,
            otherwise only the best.

    Call arguments:
        logits: float tensor `(R, V)` of the next token of each beam. The beams of a row are
            neighbours.
        totals: float32 tensor `(R,)`, from `initial_totals` or a call.
        is_finished: bool tensor `(R,)`. True for beams that ended.

    Returns:
        Tuple of `(R,)` tensors: the row that each beam continues, int32; its token, int32, without
        meaning for a finished beam; and its total, the best first.
    """

    def __init__(self, num_beams=5, return_all_beams=False):
        self.num_beams = num_beams
        self.return_all_beams = return_all_beams

    def initial_totals(self, num_rows):
        """Returns the totals of `R` beams before the first token, when a row's beams are equal."""
        is_first = ops.arange(num_rows) % self.num_beams == 0
        return ops.cast(ops.where(is_first, 0.0, IMPOSSIBLE_SCORE), "float32")

    def __call__(self, logits, totals, is_finished):
        num_rows, vocabulary_size = logits.shape
        log_probs = ops.log_softmax(ops.cast(logits, "float32"), axis=-1)
        # A finished beam has one continuation, which costs nothing.
        is_first = ops.arange(vocabulary_size) == 0
        end_log_probs = ops.cast(ops.where(is_first, 0.0, IMPOSSIBLE_SCORE), "float32")
        log_probs = ops.where(is_finished[:, None], end_log_probs, log_probs)
        candidates = ops.reshape(
            totals[:, None] + log_probs, [-1, self.num_beams * vocabulary_size]
        )
        totals, places = ops.top_k(candidates, self.num_beams)  # [B, W]
        places = ops.cast(places, "int32")
        first_beams = ops.arange(0, num_rows, self.num_beams, dtype="int32")
        parents = places // vocabulary_size + first_beams[:, None]
        beams = (parents, places % vocabulary_size, totals)
        return tuple(ops.reshape(each, [-1]) for each in beams)


class GreedySampler:
    """Greedy sampler: the token with the highest logit, the first of equals.

    Its call has the arguments of `RandomSampler`, and does not use the seed.
    """

    def __call__(self, logits, seed):
        del seed
        return ops.cast(ops.argmax(logits, axis=-1), "int32")


def is_per_row(setting):
    """True if the setting is a tensor with a value per row."""
    return len(getattr(setting, "shape", ())) > 0


def restricted(logits, setting, off, restrict):
    """Applies `restrict` unless the setting, common or per row, is `off` for every row."""
    if not is_per_row(setting):
        return logits if setting == off else restrict(logits, setting)
    # Sorting a large vocabulary takes longer than the rest of the sampler.
    return ops.cond(
        ops.any(ops.not_equal(setting, off)),
        lambda: restrict(logits, ops.expand_dims(setting, 1)),
        lambda: logits,
    )


def _top_k(logits, k):
    vocabulary_size = logits.shape[-1]
    if not is_per_row(k):
        return _not_below(ops.top_k(logits, min(k, vocabulary_size))[0][:, -1:], logits)
    falling = ops.top_k(logits, vocabulary_size)[0]
    # Without a limit the threshold is the lowest logit, so all tokens are candidates.
    k = ops.where(k > 0, k, vocabulary_size)
    is_candidate = ops.arange(vocabulary_size, dtype="int32") < k
    return _not_below(_lowest(falling, is_candidate), logits)


def _top_p(logits, p):
    if is_per_row(p):
        # Rounded sums could exclude a token of a row without a limit.
        p = ops.where(p >= 1.0, float("inf"), p)
    vocabulary_size = logits.shape[-1]
    falling = ops.top_k(logits, vocabulary_size)[0]  # [B, V]
    probabilities = ops.softmax(falling, axis=-1)
    # A token is a candidate if the tokens before it do not reach p.
    reached_before = ops.cumsum(probabilities, axis=-1) - probabilities
    is_candidate = ops.logical_or(reached_before < p, ops.arange(vocabulary_size) == 0)
    return _not_below(_lowest(falling, is_candidate), logits)


def _lowest(falling, is_candidate):
    return ops.min(ops.where(is_candidate, falling, float("inf")), axis=-1, keepdims=True)


def _not_below(lowest, logits):
    return ops.where(logits >= lowest, logits, -float("inf"))


def _min_p(logits, min_p):
    return _not_below(ops.max(logits, axis=-1, keepdims=True) + ops.log(min_p), logits)


def _gumbel(bits):
    """Returns Gumbel noise from uniform bits.

    The winners come from the small uniform numbers, which float32 resolves best.
    """
    # Every backend converts signed integers to floats.
    high = ops.right_shift(bits, ops.convert_to_tensor(8, dtype="uint32"))
    low = ops.bitwise_and(bits, ops.convert_to_tensor(255, dtype="uint32"))
    high, low = (ops.cast(ops.cast(each, "int32"), "float32") for each in (high, low))
    uniform = (high * 256.0 + low + 0.5) * 2.0**-32
    uniform = ops.minimum(uniform, 1.0 - 2.0**-24)  # rounding must not reach 1
    return -ops.log(-ops.log1p(-uniform))


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
    """Returns the sampler, or a `RandomSampler` of the `SETTINGS` that `settings` contains.

    Without a sampler and settings, it returns `default`, or a `RandomSampler` if that is `None`.
    Raises ValueError if there are both a sampler and a setting.
    """
    options = {name: settings[name] for name in SETTINGS if name in settings}
    if sampler is None:
        return RandomSampler(**options) if options or default is None else default
    if options:
        raise ValueError(
            f"`sampler` has its own settings; leave out `sampler` or `{next(iter(options))}`. "
            f"Received: sampler={sampler!r}, {options}"
        )
    return get(sampler)


__all__ = ["BeamSampler", "GreedySampler", "RandomSampler", "choose", "get"]
