"""Effective memory length, and relative effective context length (RECL) of a model group.

Shape letters used in this module: I models, C context lengths, N tokens.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from txl_tf import metrics


@dataclasses.dataclass(frozen=True, kw_only=True)
class EffectiveMemoryLength:
    """A memory length, and the perplexities it follows from.

    References:
     - [Khandelwal et al., 2018](https://arxiv.org/abs/1805.04623)
     - [Dai et al., 2019](https://arxiv.org/abs/1901.02860), Section 1
    """

    length: int
    """Tokens of memory, beyond which the next length gains less than the threshold."""
    is_lower_bound: bool
    """Whether the last length measured still gained enough, so that it may be more."""
    perplexities: tuple[tuple[int, float], ...]
    """Of every length that was looked at: memory length, perplexity."""


def effective_memory_length(
    lengths: Iterable[int], perplexity_of: Callable[[int], float], threshold: float = 0.001
) -> EffectiveMemoryLength:
    """Lengthens the memory until the perplexity falls no further.

    Lengths beyond the first that gains too little are not measured.

    Args:
        lengths: memory lengths in the order to try, ascending; at least one.
        perplexity_of: function of a memory length that returns the
            perplexity.
        threshold: float. The least relative gain over the length before that
            counts.

    Returns:
        An `EffectiveMemoryLength`.

    Raises:
        ValueError: If there is no length.
    """
    measured: list[tuple[int, float]] = []
    for length in lengths:
        perplexity = perplexity_of(length)
        measured.append((length, perplexity))
        if len(measured) == 1:
            continue
        before, perplexity_before = measured[-2]
        if (perplexity_before - perplexity) / perplexity_before < threshold:
            return EffectiveMemoryLength(
                length=before, is_lower_bound=False, perplexities=tuple(measured)
            )
    if not measured:
        raise ValueError("`lengths` must have at least one length. Received: none")
    return EffectiveMemoryLength(
        length=measured[-1][0], is_lower_bound=True, perplexities=tuple(measured)
    )


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
        """Returns the perplexity of a model with one context length, on all tokens."""
        return metrics.perplexity(self._of(context)[model].mean())

    def baseline(self, context: int) -> np.ndarray:
        """Returns the least loss of any model on each token, float64 `(N,)`: `b(c, t)`."""
        return self._of(context).min(axis=0)

    def hard_tokens(self, context: int, ratio: float) -> np.ndarray:
        """Returns the tokens with the largest baseline.

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
        """Returns the loss with a long context, where it is below the baseline: `f_i(c, c')`.

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
        """Returns the perplexity that a long context takes off the baseline's.

        Arguments are those of `relative_loss`. It is not normalised and never
        negative: `exp f_i(c, c) - exp f_i(c, c')`.
        """
        before = metrics.perplexity(self.relative_loss(model, short, short, ratio))
        return before - metrics.perplexity(self.relative_loss(model, short, long, ratio))

    def relative_gain(self, model: int, short: int, long: int, ratio: float) -> float:
        """Returns the share of it in the baseline's perplexity, from 0 to 1: `g_i(c, c')`."""
        before = metrics.perplexity(self.relative_loss(model, short, short, ratio))
        return self.perplexity_gain(model, short, long, ratio) / before

    def _of(self, context: int) -> np.ndarray:
        """Losses `(I, N)` with one context length."""
        if context not in self.contexts:
            raise ValueError(
                f"The group was measured with the contexts {self.contexts}. "
                f"Received: context={context}"
            )
        return self._losses[:, self.contexts.index(context)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelativeEffectiveContextLength:
    """The RECL of one model, and the gains it follows from.

    References:
     - [Dai et al., 2019](https://arxiv.org/abs/1901.02860), Appendix C
    """

    length: int
    """Tokens of context, beyond which the next step gains less than the threshold."""
    is_lower_bound: bool
    """Whether the last step measured still gained enough, so that it may be more."""
    gains: tuple[tuple[int, int, float], ...]
    """Of every step that was looked at: short context, long context, relative gain."""


def relative_effective_context_length(
    group: ModelGroup, model: int, *, ratio: float, step_size: int, threshold: float = 0.01
) -> RelativeEffectiveContextLength:
    """Lengthens the context step by step until a step gains too little.

    It begins with the shortest context of the group.

    Args:
        group: `ModelGroup`.
        model: int. Index of the model in the group.
        ratio: float. Share `r` of hard tokens that gains are measured on.
        step_size: int. Tokens that each step adds.
        threshold: float. The least relative gain that counts.

    Returns:
        A `RelativeEffectiveContextLength`.

    Raises:
        ValueError: If the step is not positive, or leads to a context in the
            range of the group that was not measured.
    """
    if step_size <= 0:
        raise ValueError(f"`step_size` must be positive. Received: step_size={step_size}")
    short, gains = group.contexts[0], []
    while (long := short + step_size) <= group.contexts[-1]:
        gain = group.relative_gain(model, short, long, ratio)
        gains.append((short, long, gain))
        if gain < threshold:
            return RelativeEffectiveContextLength(
                length=short, is_lower_bound=False, gains=tuple(gains)
            )
        short = long
    return RelativeEffectiveContextLength(length=short, is_lower_bound=True, gains=tuple(gains))
