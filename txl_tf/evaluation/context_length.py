"""Effective memory length, and relative effective context length (RECL) of a model group.

Shape letters used in this module: I models, C context lengths, N tokens.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from txl_tf import metrics


class EffectiveLength(NamedTuple):
    """Length beyond which the next one gains too little.

    References:
     - [Khandelwal et al., 2018](https://arxiv.org/abs/1805.04623)
     - [Dai et al., 2019](https://arxiv.org/abs/1901.02860), Section 1 and Appendix C
    """

    length: int
    """Tokens of memory or of context."""
    is_lower_bound: bool
    """True if the last measured length still gained enough, so that the result may be larger."""


def effective_memory_length(
    lengths: Iterable[int], perplexity_of: Callable[[int], float], threshold: float = 0.001
) -> tuple[EffectiveLength, dict[int, float]]:
    """Lengthens the memory until perplexity falls by less than `threshold`, a share.

    Takes ascending lengths. Returns the length and the perplexities of all measured lengths;
    those beyond the first that gains too little are not measured.
    """
    measured: dict[int, float] = {}
    before = 0
    for length in lengths:
        measured[length] = perplexity_of(length)
        if len(measured) > 1 and 1.0 - measured[length] / measured[before] < threshold:
            return EffectiveLength(before, is_lower_bound=False), measured
        before = length
    return EffectiveLength(before, is_lower_bound=True), measured


class ModelGroup:
    """Losses of several models on the same tokens, with several context lengths.

    All models of a group share one baseline, so that a model that is bad at short contexts does
    not look good at long ones. Gains are measured on the hard tokens only: those that no model
    predicts well from the short context. `contexts` are ascending; `losses` are the nats
    `l_i(c, t)`, float `(I, C, N)`.

    References:
     - [Dai et al., 2019](https://arxiv.org/abs/1901.02860), Appendix C
    """

    def __init__(self, contexts: Sequence[int], losses: np.ndarray) -> None:
        self.contexts = tuple(contexts)
        self._losses = np.asarray(losses, np.float64)

    @property
    def num_tokens(self) -> int:
        """Number of tokens that every model has predicted, `N`."""
        return self._losses.shape[2]

    def perplexity(self, model: int, context: int) -> float:
        """Returns the perplexity of a model with one context length, on all tokens."""
        return metrics.perplexity(self._of(context)[model].mean())

    def baseline(self, context: int) -> np.ndarray:
        """Returns the least loss of any model on each token, float64 `(N,)`: `b(c, t)`."""
        return self._of(context).min(axis=0)

    def hard_tokens(self, context: int, ratio: float) -> np.ndarray:
        """Returns indices of the share `r` of all tokens with the largest baseline, at least one.

        Of equal tokens, the earlier come first.
        """
        count = max(1, round(ratio * self.num_tokens))
        return np.argsort(-self.baseline(context), kind="stable")[:count]

    def relative_loss(self, model: int, short: int, long: int, ratio: float) -> float:
        """Returns mean nats of hard tokens with a long context, at most the baseline: `f_i(c, c')`.

        `short` is the context length `c` of baseline and hard tokens, `long` is `c'`.
        """
        losses = np.minimum(self.baseline(short), self._of(long)[model])
        return float(losses[self.hard_tokens(short, ratio)].mean())

    def perplexity_gain(self, model: int, short: int, long: int, ratio: float) -> float:
        """Returns the fall of the baseline's perplexity by a long context.

        It is not normalised and never negative: `exp f_i(c, c) - exp f_i(c, c')`.
        """
        before = metrics.perplexity(self.relative_loss(model, short, short, ratio))
        return before - metrics.perplexity(self.relative_loss(model, short, long, ratio))

    def relative_gain(self, model: int, short: int, long: int, ratio: float) -> float:
        """Returns this gain as a share of the baseline's perplexity, 0 to 1: `g_i(c, c')`."""
        before = metrics.perplexity(self.relative_loss(model, short, short, ratio))
        return self.perplexity_gain(model, short, long, ratio) / before

    def relative_effective_context_length(
        self, model: int, *, ratio: float, step_size: int, threshold: float = 0.01
    ) -> EffectiveLength:
        """Lengthens the context step by step until the relative gain is below the threshold.

        It begins with the shortest context; every step must lead to a measured one.
        """
        short = self.contexts[0]
        while (long := short + step_size) <= self.contexts[-1]:
            if self.relative_gain(model, short, long, ratio) < threshold:
                return EffectiveLength(short, is_lower_bound=False)
            short = long
        return EffectiveLength(short, is_lower_bound=True)

    def _of(self, context: int) -> np.ndarray:
        """Returns losses `(I, N)` with one context length."""
        return self._losses[:, self.contexts.index(context)]
