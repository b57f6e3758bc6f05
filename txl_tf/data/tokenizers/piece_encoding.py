"""Encodes a document that arrives in pieces."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from txl_tf.data.tokenizers.invalid_text_error import InvalidTextError


def encode_line_pieces(
    encode: Callable[[bytes, bool, bool], np.ndarray], pieces: Iterable[bytes]
) -> Iterator[np.ndarray]:
    """Encodes the pieces of one document in order, for tokenizers that mark lines.

    Args:
        encode: function of a piece, of whether it begins a line and of whether
            it ends the document.
        pieces: iterable of bytes. The document, in any pieces that do not cut
            a character; CR LF can be cut.

    Yields:
        The token ids of every piece.

    Raises:
        InvalidTextError: If a piece cannot be encoded. Its place is counted
            from the beginning of the document.
    """
    bytes_before = lines_before = 0
    begins_line = True
    after_return = False
    for piece, is_last in _with_last(pieces):
        text = piece
        if after_return and piece[:1] == b"\n":
            # The line ended with the CR of the piece before.
            text = piece[1:]
        try:
            yield encode(text, begins_line, is_last)
        except InvalidTextError as error:
            skipped = len(piece) - len(text)
            raise error.shifted(bytes_before + skipped, lines_before + skipped) from error
        bytes_before += len(piece)
        lines_before += piece.count(b"\n")
        if piece:
            begins_line = piece[-1:] in (b"\n", b"\r")
            after_return = piece[-1:] == b"\r"


def encode_pieces(
    encode: Callable[[bytes], np.ndarray], pieces: Iterable[bytes]
) -> Iterator[np.ndarray]:
    """Encodes the pieces of one document in order.

    Args:
        encode: function of a piece.
        pieces: iterable of bytes. The document.

    Yields:
        The token ids of every piece.

    Raises:
        InvalidTextError: If a piece cannot be encoded. Its place is counted
            from the beginning of the document.
    """
    bytes_before = lines_before = 0
    for piece in pieces:
        try:
            yield encode(piece)
        except InvalidTextError as error:
            raise error.shifted(bytes_before, lines_before) from error
        bytes_before += len(piece)
        lines_before += piece.count(b"\n")


def _with_last(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    iterator = iter(pieces)
    for piece in iterator:
        for following in iterator:
            yield piece, False
            piece = following
        yield piece, True
