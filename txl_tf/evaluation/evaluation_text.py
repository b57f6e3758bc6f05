"""The text that an evaluation reads."""

import dataclasses
from collections.abc import Callable
from typing import Self

import numpy as np

ReadRange = Callable[[int, int], np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationText:
    """Tokens by their place, and what text they stand for."""

    name: str
    """Name of the split."""
    num_tokens: int
    """Tokens of the text, `n`; the first is nobody's target."""
    read_tokens: ReadRange
    """Function of a start and a stop that returns the token ids between them."""
    read_document_starts: ReadRange | None = None
    """Function of a start and a stop that returns which tokens begin a document."""
    num_bytes: int
    """Bytes of text that all `n` tokens stand for."""
    num_characters: int
    """UTF-8 code points of that text."""
    num_words: int
    """Words of that text."""

    @classmethod
    def of_tokens(
        cls,
        name: str,
        token_ids: np.ndarray,
        *,
        num_bytes: int,
        num_characters: int,
        num_words: int,
    ) -> Self:
        """Builds a text, one document, of tokens that are at hand.

        Args:
            name: str. Name of the text.
            token_ids: int vector.
            num_bytes: int. Bytes of the text.
            num_characters: int. Characters of the text.
            num_words: int. Words of the text.

        Returns:
            The text.
        """
        return cls(
            name=name,
            num_tokens=len(token_ids),
            read_tokens=lambda start, stop: token_ids[start:stop],
            read_document_starts=lambda start, stop: np.arange(start, stop) == 0,
            num_bytes=num_bytes,
            num_characters=num_characters,
            num_words=num_words,
        )
