"""Settings of generation, with the same names in Python, on the command line and in exports."""

import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated

from txl_tf.config.base import FRACTION, FrozenConfig, Range, not_negative, positive

DEFAULT_NEW_TOKENS = 128
"""Tokens to generate unless a request says otherwise."""
# Fractional part of the golden ratio in 32 bits; its multiples are far apart.
_GOLDEN_RATIO = 0x9E3779B9
MOST_BIAS = 100
"""Largest number in `logit_bias`; the smallest is its negative."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingConfig(FrozenConfig):
    """Settings that determine how the next token is drawn.

    First the penalties change the logits of used tokens and the bias is added. Then all logits are
    divided by the temperature. Last `top_k`, `top_p` and `min_p`, in this order, exclude tokens.

    Raises:
        ValueError: If a value is out of its range.
    """

    temperature: Annotated[float, not_negative()] = 1.0
    """Divisor of the logits; 0 always writes the most probable token."""
    top_k: Annotated[int, not_negative(2**31 - 1)] = 0
    """Number of the most probable tokens to choose from; 0 means all tokens."""
    top_p: Annotated[float, Range(0, 1, excludes_low=True)] = 0.9
    """Choose from the most probable tokens that have this probability together; 1 means all."""
    min_p: Annotated[float, FRACTION] = 0.0
    """Least probability of a token, as a share of the highest probability; 0 means all tokens."""
    repetition_penalty: Annotated[float, Range(1)] = 1.0
    """Positive logits of tokens that were read or written are divided by this, negative ones
    multiplied; 1 is off, 1.2 is usual."""
    frequency_penalty: Annotated[float, Range(-2, 2)] = 0.0
    """Subtracted from the logit of a token once for each time it was written; 0 is off."""
    presence_penalty: Annotated[float, Range(-2, 2)] = 0.0
    """Subtracted once from the logit of each token that was written; 0 is off."""
    logit_bias: tuple[tuple[int | float, ...], ...] = ()
    """Numbers from -100 to 100 that are added to logits: a dict by token id, or pairs."""
    seed: Annotated[int | None, Range(-(2**31), 2**31 - 1)] = None
    """The same seed writes the same text; None draws a new seed each time."""

    def __post_init__(self) -> None:
        biases = self.logit_bias
        if isinstance(biases, Mapping):
            try:  # The keys of a JSON object are strings.
                pairs = [(int(token_id), number) for token_id, number in biases.items()]
            except ValueError:
                pairs = [(-1, 0)]  # `validate` refuses this id
            object.__setattr__(self, "logit_bias", tuple(pairs))
        super().__post_init__()

    def validate(self) -> None:
        pairs = self.logit_bias
        are_pairs = all(len(each) == 2 and type(each[0]) is int and each[0] >= 0 for each in pairs)
        is_valid = are_pairs and all(abs(number) <= MOST_BIAS for _, number in pairs)
        self.require(
            "logit_bias", is_valid, f"have token ids and numbers from -{MOST_BIAS} to {MOST_BIAS}"
        )

    @property
    def has_penalty(self) -> bool:
        """True if a penalty changes logits, so that the used tokens must be known."""
        return self.repetition_penalty != 1 or any((self.frequency_penalty, self.presence_penalty))


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationConfig(SamplingConfig):
    """Settings of a generated text: how each token is drawn, and where the text ends.

    Raises:
        ValueError: If a value is out of its range, or a stop text is empty.
    """

    max_tokens: Annotated[int, positive(2**31 - 1)] = DEFAULT_NEW_TOKENS
    """Largest number of tokens to write."""
    stop: tuple[str, ...] = ()
    """Texts that end the written text, which does not contain them. The stop text that is complete
    first counts; if several are complete at the same character, the longest."""
    allow_unknown: bool = False
    """Whether the token for unknown words may be written."""

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
    numbers = (seed + index * _GOLDEN_RATIO + 2**31 for index in range(num_samples))
    return [each % 2**32 - 2**31 for each in numbers]
