"""Counts of a text that arrives in pieces."""

import numpy as np

_IS_SPACE = np.zeros(256, dtype=bool)
_IS_SPACE[list(b" \t\n\r\x0b\x0c")] = True
# Bytes 0x80 to 0xBF continue a UTF-8 character; read as signed they are the lowest.
_FIRST_NOT_CONTINUATION = -64


class TextCounts:
    """Counts bytes, characters, words and documents of text given in pieces.

    Characters are bytes that do not continue a UTF-8 code point, so that
    arbitrary bytes can be counted. Words are runs of bytes other than ASCII
    white space; a run may cross pieces of one document.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.characters = 0
        self.words = 0
        self.documents = 0
        self._after_space = True

    def start_document(self) -> None:
        """Begins the next document."""
        self.documents += 1
        self._after_space = True

    def add(self, piece: bytes) -> None:
        """Counts the next piece of the current document.

        Args:
            piece: bytes. The text.
        """
        if not piece:
            return
        values = np.frombuffer(piece, dtype=np.uint8)
        self.bytes += len(piece)
        self.characters += int(np.count_nonzero(values.view(np.int8) >= _FIRST_NOT_CONTINUATION))
        is_space = _IS_SPACE[values]
        self.words += int(np.count_nonzero(is_space[:-1] > is_space[1:]))
        self.words += int(self._after_space and not is_space[0])
        self._after_space = bool(is_space[-1])
