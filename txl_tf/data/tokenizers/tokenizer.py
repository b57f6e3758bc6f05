"""Tokenizer interface, with checks of token ids and of UTF-8 text."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, Self

import numpy as np

from txl_tf.data.records import token_dtype


class Tokenizer(Protocol):
    """The interface of a tokenizer.

    A tokenizer turns bytes into token ids and back. Its `fingerprint` covers
    everything that decides the ids, so that a data set, a checkpoint and an
    export can be held against each other.
    """

    kind: str
    vocabulary_size: int
    token_dtype: np.dtype

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of what defines the tokenizer."""

    @property
    def vocabulary_files(self) -> Mapping[str, bytes]:
        """Names and contents of the files that a data set keeps of it."""

    def encode(self, text: bytes) -> np.ndarray:
        """Turns bytes into a vector of token ids of type `token_dtype`."""

    def decode(self, token_ids: np.ndarray) -> bytes:
        """Turns token ids back into bytes."""


class InvalidTextError(ValueError):
    """Text has something that the tokenizer neither keeps nor drops silently.

    A tokenizer knows the text it is given, and not the file it comes from;
    who knows more moves the place by `shifted`.

    Args:
        reason: str. What is wrong, in one sentence.
        offset_bytes: int. Place of the offending byte, counted from 0.
        line: int. Line of that byte, counted from 1; lines end at a line feed.
    """

    def __init__(self, reason: str, *, offset_bytes: int, line: int) -> None:
        self.reason = reason
        self.offset_bytes = offset_bytes
        self.line = line
        super().__init__(f"{reason} Received: line {line}, byte {offset_bytes}")

    @classmethod
    def at(cls, reason: str, text: bytes, offset_bytes: int) -> Self:
        """Builds the error for a place in a text.

        Args:
            reason: str. What is wrong, in one sentence.
            text: bytes. The text that the tokenizer was given.
            offset_bytes: int. The place in it.

        Returns:
            The error, with its line.
        """
        line = text.count(b"\n", 0, offset_bytes) + 1
        return cls(reason, offset_bytes=offset_bytes, line=line)

    def shifted(self, bytes_before: int, lines_before: int) -> Self:
        """Returns the error with its place counted from an earlier byte.

        Args:
            bytes_before: int. Bytes before the text that the error is about.
            lines_before: int. Line feeds in those bytes.

        Returns:
            The error of the longer text.
        """
        return type(self)(
            self.reason,
            offset_bytes=self.offset_bytes + bytes_before,
            line=self.line + lines_before,
        )


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


def narrowest_token_dtype(vocabulary_size: int) -> np.dtype:
    """Returns the narrowest stored type that holds every id of a vocabulary.

    Args:
        vocabulary_size: int. Number of ids.

    Returns:
        The type of 1, 2 or 4 bytes, as records store it.
    """
    return token_dtype(1 if vocabulary_size <= 1 << 8 else 2 if vocabulary_size <= 1 << 16 else 4)


def checked_token_ids(token_ids: np.ndarray | Sequence[int], vocabulary_size: int) -> np.ndarray:
    """Returns ids as a vector, if all of them are in the vocabulary.

    Args:
        token_ids: vector of ints.
        vocabulary_size: int. Number of ids.

    Returns:
        Integer vector.

    Raises:
        ValueError: If an id is out of range or not an integer.
    """
    ids = np.asarray(token_ids)
    if ids.size == 0:
        return np.zeros(0, np.int32)
    if ids.dtype.kind not in "iu":
        raise ValueError(f"`token_ids` must be integers. Received: dtype {ids.dtype}")
    if ids.min() < 0 or ids.max() >= vocabulary_size:
        raise ValueError(
            f"`token_ids` must be in [0, {vocabulary_size}). "
            f"Received: ids from {ids.min()} to {ids.max()}"
        )
    return ids


def decode_utf8(text: bytes) -> str:
    """Decodes UTF-8; nothing is replaced or dropped.

    Args:
        text: bytes. The text.

    Returns:
        The same text, as characters.

    Raises:
        InvalidTextError: If the text is not UTF-8.
    """
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"The text is not UTF-8: byte 0x{text[error.start]:02x} ({error.reason})."
        raise InvalidTextError.at(reason, text, error.start) from error
