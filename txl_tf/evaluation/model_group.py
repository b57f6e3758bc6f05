"""What longer contexts gain over the best that a group of models makes of a short one.

Shape letters used in this module: I models, C context lengths, N tokens.
"""

import math
from collections.abc import Sequence

import numpy as np


class ModelGroup:
    """Losses of several models on the same tokens, with several context lengths.

    All models of a group share one baseline, so that none is called good at
    long contexts for being bad at short ones. A gain is measured on the hard
    tokens alone: those that no model predicts well from the short context.

    Args:
        contexts: context lengths, ascending.
        losses: float array `(I, C, N)`. Nats of every model, context length
            and token: `l_i(c, t)`.

    Raises:
        ValueError: If the lengths do not ascend or the shapes do not fit.

    References:
     - [Dai et al., 2019](https://arxiv.org/abs/1901.02860), Appendix C
    """

    def __init__(self, contexts: Sequence[int], losses: np.ndarray) -> None:
        self.contexts = tuple(contexts)
        self._losses = np.asarray(losses, np.float64)
        if list(self.contexts) != sorted(set(self.contexts)):
            raise ValueError(f"`contexts` must ascend. Received: contexts={self.contexts}")
        shape = self._losses.shape
        if len(shape) != 3 or shape[1] != len(self.contexts) or 0 in shape:
            raise ValueError(
                f"`losses` must have the shape (models, {len(self.contexts)}, tokens). "
                f"Received: shape={shape}"
            )

    @property
    def num_models(self) -> int:
        """Models in the group, `I`."""
        return self._losses.shape[0]

    @property
    def num_tokens(self) -> int:
        """Tokens that every model has predicted, `N`."""
        return self._losses.shape[2]

    def perplexity(self, model: int, context: int) -> float:
        """The perplexity of a model with one context length, on all tokens.

        Args:
            model: int. Index of the model.
            context: int. Context length.

        Returns:
            The perplexity.
        """
        return math.exp(self._of(context)[model].mean())

    def baseline(self, context: int) -> np.ndarray:
        """The least loss that any model has on each token: `b(c, t)`.

        Args:
            context: int. Context length `c`.

        Returns:
            Float64 array `(N,)`.
        """
        return self._of(context).min(axis=0)

    def hard_tokens(self, context: int, ratio: float) -> np.ndarray:
        """The tokens with the largest baseline.

        Args:
            context: int. Context length of the baseline.
            ratio: float. Share `r` of all tokens, above 0 and at most 1.

        Returns:
            Int array: indices of `r * N` tokens, rounded, and of at least one.
            Of equal ones, the earlier come first.

        Raises:
            ValueError: If the ratio is not in its range.
        """
        if not 0.0 < ratio <= 1.0:
            raise ValueError(f"`ratio` must be above 0 and at most 1. Received: ratio={ratio}")
        count = max(1, round(ratio * self.num_tokens))
        return np.argsort(-self.baseline(context), kind="stable")[:count]

    def relative_loss(self, model: int, short: int, long: int, ratio: float) -> float:
        """The loss with a long context, where it is below the baseline: `f_i(c, c')`.

        Args:
            model: int. Index of the model.
            short: int. Short context length `c`, of baseline and hard tokens.
            long: int. Long context length `c'`.
            ratio: float. Share of hard tokens.

        Returns:
            Mean nats over the hard tokens.
        """
        losses = np.minimum(self.baseline(short), self._of(long)[model])
        return float(losses[self.hard_tokens(short, ratio)].mean())

    def perplexity_gain(self, model: int, short: int, long: int, ratio: float) -> float:
        """The perplexity that a long context takes off the baseline's, not normalised.

        Args:
            model: int. Index of the model.
            short: int. Short context length `c`.
            long: int. Long context length `c'`.
            ratio: float. Share of hard tokens.

        Returns:
            `exp f_i(c, c) - exp f_i(c, c')`, never negative.
        """
        before = math.exp(self.relative_loss(model, short, short, ratio))
        return before - math.exp(self.relative_loss(model, short, long, ratio))

    def relative_gain(self, model: int, short: int, long: int, ratio: float) -> float:
        """The share of the baseline's perplexity that a long context takes off: `g_i(c, c')`.

        Args:
            model: int. Index of the model.
            short: int. Short context length `c`.
            long: int. Long context length `c'`.
            ratio: float. Share of hard tokens.

        Returns:
            Between 0 and 1.
        """
        before = math.exp(self.relative_loss(model, short, short, ratio))
        return self.perplexity_gain(model, short, long, ratio) / before

    def _of(self, context: int) -> np.ndarray:
        """Losses `(I, N)` with one context length."""
        if context not in self.contexts:
            raise ValueError(
                f"The group was measured with the contexts {self.contexts}. "
                f"Received: context={context}"
            )
        return self._losses[:, self.contexts.index(context)]
