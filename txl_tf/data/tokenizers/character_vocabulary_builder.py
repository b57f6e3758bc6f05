"""Counts characters, in parts and in order, and makes a vocabulary of them."""

import numpy as np

from txl_tf.data.tokenizers.character_tokenizer import (
    NUM_CODE_POINTS,
    CharacterTokenizer,
    code_points_of,
)

# One search is a pass over the text, and sorting the text costs as much as some dozens.
_MAX_SEARCHES = 64


class CharacterVocabularyBuilder:
    """Counts characters and keeps the order in which they were first seen.

    Builders of consecutive parts of a text, merged in the order of the text,
    give the vocabulary of one pass, ties included.

    Example:
    ```python
    builder = CharacterVocabularyBuilder()
    builder.count(text)
    tokenizer = builder.build()
    ```
    """

    def __init__(self) -> None:
        self._counts = np.zeros(NUM_CODE_POINTS, np.int64)
        self._order: list[int] = []

    @property
    def characters(self) -> list[str]:
        """The characters in the order of first sight."""
        return [chr(code_point) for code_point in self._order]

    @property
    def counts(self) -> np.ndarray:
        """How often each of `characters` came, as int64 vector."""
        return self._counts[self._order]

    def count(self, text: bytes) -> None:
        """Counts the characters of a text.

        Args:
            text: bytes. UTF-8 text, or a piece of it that cuts no character.

        Raises:
            InvalidTextError: If the text is not UTF-8.
        """
        code_points = code_points_of(text)
        if not code_points.size:
            return
        counts = np.bincount(code_points)
        new = np.flatnonzero((self._counts[: len(counts)] == 0) & (counts > 0))
        self._order += new[np.argsort(_first_places(code_points, new))].tolist()
        self._counts[: len(counts)] += counts

    def merge(self, characters: list[str], counts: np.ndarray) -> None:
        """Adds what another builder has counted in the text that follows.

        Args:
            characters: list of str. `characters` of the other builder.
            counts: int64 vector. `counts` of the other builder.
        """
        code_points = [ord(character) for character in characters]
        self._order += [each for each in code_points if self._counts[each] == 0]
        self._counts[code_points] += counts

    def build(
        self,
        *,
        min_frequency: int = 0,
        max_size: int | None = None,
        unknown_token: str | None = None,
    ) -> CharacterTokenizer:
        """Makes the vocabulary: by falling count, then by first sight.

        Args:
            min_frequency: int. Characters that came less often are left out.
                Defaults to `0`.
            max_size: optional int. Number of characters to keep. Defaults to
                all.
            unknown_token: optional str. What stands for characters that are
                left out; see `CharacterTokenizer`. Defaults to none.

        Returns:
            The tokenizer.

        Raises:
            ValueError: If there are no characters.
        """
        counts = self.counts
        order = np.argsort(-counts, kind="stable")[:max_size]
        characters = self.characters
        kept = [characters[i] for i in order[counts[order] >= min_frequency]]
        return CharacterTokenizer(kept, unknown_token=unknown_token)


def _first_places(code_points: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where each wanted code point, all of which occur, occurs first."""
    if len(wanted) <= _MAX_SEARCHES:
        return np.array([np.argmax(code_points == each) for each in wanted], np.int64)
    different, places = np.unique(code_points, return_index=True)
    return places[np.searchsorted(different, wanted)]
