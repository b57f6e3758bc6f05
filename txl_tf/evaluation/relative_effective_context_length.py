"""How much context a model makes use of, compared with a group of models."""

import dataclasses

from txl_tf.evaluation.model_group import ModelGroup


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
