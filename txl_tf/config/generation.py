"""Settings of written text: the same words in Python, on the command line and in an export."""

import dataclasses
import secrets
from collections.abc import Sequence
from typing import Annotated, Any

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
    """How text is written.

    The penalty of repetitions comes first, then the temperature; `top_k`, `top_p` and
    `min_p` each leave a part of the tokens, in this order.

    Raises:
        ValueError: If a value is out of its range, or a stop text is empty.
    """

    max_tokens: Annotated[int, positive(2**31 - 1)] = DEFAULT_NEW_TOKENS
    """Most tokens to write."""
    temperature: Annotated[float, not_negative()] = 1.0
    """Divisor of the logits; 0 always writes the most probable token."""
    top_k: Annotated[int, not_negative(2**31 - 1)] = 0
    """Only so many of the most probable tokens; 0 is all."""
    top_p: Annotated[float, Range(0, 1, excludes_low=True)] = 0.9
    """Only the most probable tokens that together have this probability; 1 is all."""
    min_p: Annotated[float, FRACTION] = 0.0
    """Only tokens with this share of the highest probability; 0 is all."""
    repetition_penalty: Annotated[float, Range(1)] = 1.0
    """Lowers the scores of tokens that were read or written; 1 is off, 1.2 is usual."""
    seed: Annotated[int | None, Range(-(2**31), 2**31 - 1)] = None
    """The same seed writes the same text; None is a new one each time."""
    stop: tuple[str, ...] = ()
    """A text ends before the first of these."""
    allow_unknown: bool = False
    """Whether the token of unknown words may be written."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", stop_texts(self.stop))
        super().__post_init__()


def stop_texts(stop: Any) -> tuple[str, ...]:
    """Returns stop texts as a tuple.

    Args:
        stop: str, several, or `None` for no text.

    Raises:
        ValueError: If it is something else, or a text is empty.
    """
    texts = () if stop is None else (stop,) if isinstance(stop, str) else stop
    if not isinstance(texts, Sequence) or not all(isinstance(each, str) and each for each in texts):
        raise ValueError(
            f"`stop` must be a text or several, none of them empty. Received: stop={stop!r}"
        )
    return tuple(texts)


def new_seed() -> int:
    """Returns an unpredictable seed from 0 to `2**31 - 1`."""
    return secrets.randbelow(2**31)


def sample_seeds(seed: int, num_samples: int) -> list[int]:
    """Returns the seeds of several samples of one prompt; the first is `seed` itself."""
    shifted = (seed + index * _GOLDEN_RATIO + 2**31 for index in range(num_samples))
    return [each % 2**32 - 2**31 for each in shifted]
