"""Relative effective context length (RECL) of models, from their losses by context length.

Dai et al. (2019), Section 1 and Appendix C; Khandelwal et al. (2018).

Shape letters used in this module: I models, C context lengths, N tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from txl_tf.evaluation.result import perplexity


class EffectiveLength(NamedTuple):
    """Context length from which the next longer one gains too little."""

    length: int
    """Tokens of context."""
    is_lower_bound: bool
    """True if the longest measured length still gained enough, so the true length may be larger."""


class ModelGroup:
    """Losses of several models on the same tokens, with several context lengths.

    All models of a group share one baseline. Otherwise a model that is bad at short contexts would
    seem to gain much from long ones. Gains are measured on hard tokens only, which no model
    predicts well from the short context.

    `contexts` are the context lengths in ascending order. `losses` are the nats `l_i(c, t)`, float
    `(I, C, N)`.
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
        return perplexity(self._of(context)[model].mean())

    def baseline(self, context: int) -> np.ndarray:
        """Returns the lowest loss of any model on each token, float64 `(N,)`: `b(c, t)`."""
        return self._of(context).min(axis=0)

    def hard_tokens(self, context: int, ratio: float) -> np.ndarray:
        """Returns indices of the `ratio` of tokens with the largest baseline, at least one."""
        count = max(1, round(ratio * self.num_tokens))
        return np.argsort(-self.baseline(context), kind="stable")[:count]

    def relative_loss(self, model: int, short: int, long: int, ratio: float) -> float:
        """Returns the mean nats of hard tokens, each at most the baseline: `f_i(c, c')`.

        `short` is the context length `c` of the baseline and of the hard tokens, `long` is `c'`.
        """
        losses = np.minimum(self.baseline(short), self._of(long)[model])
        return float(losses[self.hard_tokens(short, ratio)].mean())

    def relative_gain(self, model: int, short: int, long: int, ratio: float) -> float:
        """Returns the fraction by which a long context lowers the baseline's perplexity.

        It is never negative: `g_i(c, c')`.
        """
        before, after = (
            perplexity(self.relative_loss(model, short, context, ratio))
            for context in (short, long)
        )
        return (before - after) / before

    def relative_effective_context_length(
        self, model: int, *, ratio: float, step_size: int, threshold: float = 0.01
    ) -> EffectiveLength:
        """Lengthens the context step by step until the relative gain is below the threshold.

        The first length is the shortest context. Every step must reach a measured context.
        """
        short = self.contexts[0]
        while (long := short + step_size) <= self.contexts[-1]:
            if self.relative_gain(model, short, long, ratio) < threshold:
                return EffectiveLength(short, is_lower_bound=False)
            short = long
        return EffectiveLength(short, is_lower_bound=True)

    def _of(self, context: int) -> np.ndarray:
        """Returns the losses `(I, N)` with one context length."""
        return self._losses[:, self.contexts.index(context)]
