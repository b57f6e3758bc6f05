"""Counts of a text that arrives in pieces."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from txl_tf.data.parallel.text_piece import TextPiece

_IS_SPACE = np.zeros(256, dtype=bool)
_IS_SPACE[list(b" \t\n\r\x0b\x0c")] = True
# Bytes 0x80 to 0xBF continue a UTF-8 character; read as signed they are the lowest.
_FIRST_NOT_CONTINUATION = -64


class TextCounts(NamedTuple):
    """Counts of bytes, characters, words and documents.

    Characters are bytes that do not continue a UTF-8 code point, so that
    arbitrary bytes can be counted. Words are runs of bytes other than ASCII
    white space; a run may cross pieces of one document.
    """

    bytes: int = 0
    characters: int = 0
    words: int = 0
    documents: int = 0

    @classmethod
    def of(cls, pieces: Sequence[TextPiece]) -> Self:
        """Counts consecutive pieces.

        Args:
            pieces: sequence of `TextPiece`, at least one.

        Returns:
            The counts, to be added to those of other pieces.
        """
        text = b"".join([piece.text for piece in pieces])
        documents = sum(piece.begins_document for piece in pieces)
        if not text:
            return cls(documents=documents)
        values = np.frombuffer(text, dtype=np.uint8)
        is_space = _IS_SPACE[values]
        after_space = np.empty(len(text), bool)
        after_space[1:] = is_space[:-1]
        first = next(piece for piece in pieces if piece.text)
        after_space[0] = not first.continues_word
        starts = np.cumsum([0, *(len(piece.text) for piece in pieces[:-1])])
        begins = starts[[piece.begins_document for piece in pieces]]
        after_space[begins[begins < len(text)]] = True
        return cls(
            bytes=len(text),
            characters=int(np.count_nonzero(values.view(np.int8) >= _FIRST_NOT_CONTINUATION)),
            words=int(np.count_nonzero(after_space & ~is_space)),
            documents=documents,
        )

    def plus(self, other: Self) -> Self:
        """Returns the sums of two counts."""
        return type(self)(*(mine + more for mine, more in zip(self, other, strict=True)))
