"""What a worker does to number words."""

import collections
import itertools
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from txl_tf.data.parallel.chunk_encoding import document_starts, line_text, located
from txl_tf.data.parallel.text_piece import TextPiece
from txl_tf.data.parallel.token_chunk import TokenChunk
from txl_tf.data.text_counts import TextCounts
from txl_tf.data.tokenizers.word_rule import WordRule

_MAX_WORDS = 1 << 20


class _NumberedChunk(NamedTuple):
    table: tuple[int, int]
    new_words: list[bytes]
    tokens: TokenChunk


class WordNumbering:
    """Gives every word that is new to this worker the next number.

    Args:
        rule: `WordRule`. How text is split.
        max_words: int. With more words a worker starts again at 0, so that many
            workers do not all hold all words. Defaults to `2**20`.
    """

    def __init__(self, rule: WordRule, max_words: int = _MAX_WORDS) -> None:
        self._rule = rule
        self._max_words = max_words
        self._num_tables = 0
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {"rule": self._rule, "max_words": self._max_words}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __call__(self, pieces: Sequence[TextPiece]) -> _NumberedChunk:
        """Numbers the words of a chunk.

        Args:
            pieces: sequence of `TextPiece`, at least one.

        Returns:
            The table that the numbers are of, the words that are new in it, and
            the numbers in the place of tokens.

        Raises:
            DataDamagedError: If the text is not UTF-8.
        """
        if len(self._numbers) > self._max_words:
            self._forget()
        known = len(self._numbers)
        words: list[bytes] = []
        lengths = []
        for piece in pieces:
            found = located(self._split, piece)
            words += found
            lengths.append(len(found))
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.uint32, len(words))
        newest_first = itertools.islice(reversed(self._numbers), len(self._numbers) - known)
        return _NumberedChunk(
            (os.getpid(), self._num_tables),
            list(newest_first)[::-1],
            TokenChunk(numbers, document_starts(pieces, lengths), TextCounts.of(pieces)),
        )

    def _split(self, piece: TextPiece) -> list[bytes]:
        return self._rule.split(line_text(piece), piece.begins_line, piece.ends_document)

    def _forget(self) -> None:
        self._num_tables += 1
        self._numbers: dict[bytes, int] = collections.defaultdict(itertools.count().__next__)
