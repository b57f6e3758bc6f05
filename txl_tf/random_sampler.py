"""Sampler of random tokens, restricted to the more probable ones.

Shape letters used in this module: B rows, V vocabulary.
"""

from keras import ops

from txl_tf import functional
from txl_tf.config.generation import GenerationConfig
from txl_tf.stateless_random import random_bits

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
        drawn = ops.cast(ops.argmax(candidates + noise, axis=-1), "int32")
        return ops.where(is_greedy, most_probable, drawn) if per_row else drawn

    def candidates(self, logits):
        """Returns the logits, with excluded tokens at minus infinity."""
        logits = restricted(logits, self.top_k, 0, _top_k)
        logits = restricted(logits, self.top_p, 1.0, _top_p)
        return restricted(logits, self.min_p, 0.0, _min_p)


def is_per_row(setting):
    """Returns True for a tensor with a value per row."""
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
