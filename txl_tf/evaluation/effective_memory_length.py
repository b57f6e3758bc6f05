"""The longest memory that a model makes use of at evaluation."""

import dataclasses
from collections.abc import Callable, Iterable


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
