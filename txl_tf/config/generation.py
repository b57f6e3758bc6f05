"""Settings of written text, with the same names in Python, on the command line and in exports."""

import dataclasses
import secrets
from collections.abc import Sequence
from typing import Annotated

from txl_tf.config.base import (
    DEFAULT_NEW_TOKENS,
    FRACTION,
    FrozenConfig,
    Range,
    not_negative,
    positive,
)

_GOLDEN_RATIO = 0x9E3779B9  # the fractional part in 32 bits


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationConfig(FrozenConfig):
    """Settings of written text.

    First the scores of repeated tokens are lowered, then all are divided by the temperature. Then
    `top_k`, `top_p` and `min_p`, in this order, each exclude tokens.

    Raises:
        ValueError: If a value is out of its range, or a stop text is empty.
    """

    max_tokens: Annotated[int, positive(2**31 - 1)] = DEFAULT_NEW_TOKENS
    """Most tokens to write."""
    temperature: Annotated[float, not_negative()] = 1.0
    """Divisor of the logits; 0 always writes the most probable token."""
    top_k: Annotated[int, not_negative(2**31 - 1)] = 0
    """Number of the most probable tokens to choose from; 0 means all tokens."""
    top_p: Annotated[float, Range(0, 1, excludes_low=True)] = 0.9
    """Choose from the most probable tokens that have this probability together; 1 means all."""
    min_p: Annotated[float, FRACTION] = 0.0
    """Least probability of a token, as a share of the highest probability; 0 means all tokens."""
    repetition_penalty: Annotated[float, Range(1)] = 1.0
    """Lowers the scores of tokens that were read or written; 1 is off, 1.2 is usual."""
    seed: Annotated[int | None, Range(-(2**31), 2**31 - 1)] = None
    """The same seed writes the same text; None draws a new seed each time."""
    stop: tuple[str, ...] = ()
    """The written text ends before the first of these texts."""
    allow_unknown: bool = False
    """True to allow the token that stands for unknown words."""

    def __post_init__(self) -> None:
        stop = () if self.stop is None else self.stop
        texts = (stop,) if isinstance(stop, str) else stop
        if not isinstance(texts, Sequence) or not all(isinstance(e, str) and e for e in texts):
            raise ValueError(
                f"`stop` must be a text or a list of texts, none empty. Received: stop={stop!r}"
            )
        object.__setattr__(self, "stop", tuple(texts))
        super().__post_init__()


def new_seed() -> int:
    """Returns an unpredictable seed from 0 to `2**31 - 1`."""
    return secrets.randbelow(2**31)


def sample_seeds(seed: int, num_samples: int) -> list[int]:
    """Returns the seeds of several samples of one prompt; the first is `seed` itself."""
    shifted = (seed + index * _GOLDEN_RATIO + 2**31 for index in range(num_samples))
    return [each % 2**32 - 2**31 for each in shifted]
