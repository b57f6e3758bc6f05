"""Tokenizer interface, with checks of token ids and of UTF-8 text."""

import abc
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from txl_tf.data.records import token_dtype
from txl_tf.data.text import document_bytes, split_at_lines
from txl_tf.errors import DataDamagedError

if TYPE_CHECKING:
    from txl_tf.data.tokenizers.graph_tokenizers import GraphTokenizer


class InvalidTextError(ValueError):
    """Text that the tokenizer can neither encode nor drop silently.

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
        """
        line = text.count(b"\n", 0, offset_bytes) + 1
        return cls(reason, offset_bytes=offset_bytes, line=line)

    def damaged(self, where: str, remedy: str) -> DataDamagedError:
        """Returns the error of the file, or of the text, that it is from.

        Args:
            where: str. Its name; line and byte are added.
            remedy: str. What to do.
        """
        place = f"{where}, line {self.line}, byte {self.offset_bytes}"
        return DataDamagedError(self.reason, where=place, remedy=remedy)

    def shifted(self, bytes_before: int, lines_before: int) -> Self:
        """Returns the error with its place counted from an earlier byte.

        Args:
            bytes_before: int. Bytes before the text that the error is about.
            lines_before: int. Line feeds in those bytes.
        """
        return type(self)(
            self.reason,
            offset_bytes=self.offset_bytes + bytes_before,
            line=self.line + lines_before,
        )


def _with_last(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    iterator = iter(pieces)
    for piece in iterator:
        for following in iterator:
            yield piece, False
            piece = following
        yield piece, True


def encode_in_order(
    encode: Callable[[bytes, bool, bool], np.ndarray],
    pieces: Iterable[bytes],
    reads_lines: bool = True,
) -> Iterator[np.ndarray]:
    """Encodes the pieces of one document, one after the other.

    Args:
        encode: function of a piece, of whether it begins a line and of whether
            it ends the document.
        pieces: iterable of bytes. The document, in any pieces that do not cut
            a character; CR LF can be cut.
        reads_lines: bool. Whether CR LF is one line end. Then the second half
            is left out where a piece begins with it. Defaults to `True`.

    Raises:
        InvalidTextError: If a piece cannot be encoded. Its place is counted
            from the beginning of the document.
    """
    bytes_before = lines_before = 0
    begins_line = True
    after_return = False
    for piece, is_last in _with_last(pieces):
        skips = reads_lines and after_return and piece[:1] == b"\n"
        try:
            yield encode(piece[skips:], begins_line, is_last)
        except InvalidTextError as error:
            raise error.shifted(bytes_before + skips, lines_before + skips) from error
        bytes_before += len(piece)
        lines_before += piece.count(b"\n")
        if piece:
            begins_line = piece[-1:] in (b"\n", b"\r")
            after_return = piece[-1:] == b"\r"


_REPLACEMENT = "\ufffd"


class Tokenizer(abc.ABC):
    """Base class of tokenizers.

    A tokenizer turns bytes into token ids and back. Its `fingerprint` covers
    everything that decides the ids, so that data sets, checkpoints and exports
    can be compared.

    `encode(decode_bytes(token_ids))` gives back the ids of a document, with these exceptions:
    an `unknown_token` of several characters of a `CharacterTokenizer`, which is read as
    these, and ids that `encode` does not give, such as pieces that generation drew where
    `encode` knows a longer one, or words without the token of their line's end.

    A subclass defines `kind`, `vocabulary_size`, `token_dtype` and the abstract
    methods.
    """

    kind: str
    vocabulary_size: int
    token_dtype: np.dtype
    reads_lines: ClassVar[bool] = False
    """Whether ids depend on line ends; then CR LF is one of them, also where a piece cuts it."""
    joins_marks: bool = False
    """Whether `readable` joins words at the marks of WikiText; such text encodes differently."""
    unknown_id: int | None = None
    """Id of everything that is not in the vocabulary, if there is one."""
    uses_tensorflow: ClassVar[bool] = False
    """Whether TensorFlow encodes."""
    _definition: ClassVar[bytes]

    @classmethod
    @abc.abstractmethod
    def from_vocabulary_files(cls, files: Mapping[str, bytes]) -> Self:
        """Builds the tokenizer that a data set keeps.

        Args:
            files: dict of name to content, as `vocabulary_files` gives it.

        Raises:
            ValueError: If the files are not such a vocabulary.
        """

    @property
    @abc.abstractmethod
    def vocabulary_files(self) -> Mapping[str, bytes]:
        """Names and contents of the files that a data set keeps of it."""

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of what defines the tokenizer."""
        files = self.vocabulary_files
        content = b"".join([self._definition, *(files[name] for name in sorted(files))])
        return hashlib.sha256(content).hexdigest()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(vocabulary_size={self.vocabulary_size})"

    @property
    def end_token_id(self) -> int | None:
        """Id of the token after every sentence or document, if there is one."""
        return None

    def token_texts(self) -> list[bytes]:
        """Returns the text of every token, in the order of their ids.

        Tokens of two vocabularies are the same if their texts are. A piece keeps
        the mark of its place in a word.
        """
        return [self.decode_bytes([token_id]) for token_id in range(self.vocabulary_size)]

    def decode_text(self, token_ids: np.ndarray | Sequence[int]) -> str:
        """Turns token ids into text for people; bytes that are no UTF-8 become U+FFFD.

        Args:
            token_ids: vector of ints in `[0, vocabulary_size)`.

        Returns:
            The text, as `readable` returns it.

        Raises:
            ValueError: If an id is out of range or not an integer.
        """
        return self.decode_after([], token_ids)

    def decode_after(
        self, earlier_ids: np.ndarray | Sequence[int], token_ids: np.ndarray | Sequence[int]
    ) -> str:
        """Turns token ids into the text for people that they add to earlier ones.

        Args:
            earlier_ids: vector of ints in `[0, vocabulary_size)`. What has been
                shown before, and stays as it is.
            token_ids: as in `decode_text`.

        Returns:
            The text of `token_ids`, with the space before it if there is one.

        Raises:
            ValueError: As `decode_text`.
        """
        both = np.concatenate([np.asarray(ids, np.int64) for ids in (earlier_ids, token_ids)])
        before = len(self.decode(both[: len(earlier_ids)]))
        return self.readable(self.decode(both)[before:])

    def readable(self, text: str) -> str:
        """Returns decoded text in the form that people write; here as it is."""
        return text

    def num_certain(self, readable: str) -> int:
        """Counts the characters of a readable text that no further token changes.

        A character may take several tokens, and so may what `readable` replaces.
        """
        return len(readable.rstrip(_REPLACEMENT))

    def encode(self, text: bytes | str) -> np.ndarray:
        """Turns a document into token ids.

        Args:
            text: bytes, UTF-8 unless the tokenizer takes any bytes; or str. A byte
                order mark at its beginning is dropped.

        Returns:
            Vector of type `token_dtype`.

        Raises:
            InvalidTextError: If the text is not UTF-8, or has something that is
                not in the vocabulary, which has no token for that.
        """
        parts = list(self.encode_pieces(split_at_lines([document_bytes(text)])))
        return np.concatenate(parts) if parts else np.zeros(0, self.token_dtype)

    def encode_pieces(self, pieces: Iterable[bytes]) -> Iterator[np.ndarray]:
        """Turns a document that comes in pieces into token ids.

        Args:
            pieces: iterable of bytes. The pieces of one document, cut where
                `split_at_lines` cuts. CR LF can be cut.

        Raises:
            InvalidTextError: As `encode`. The place is counted from the
                beginning of the document.
        """
        return encode_in_order(self.encode_piece, pieces, self.reads_lines)

    @abc.abstractmethod
    def encode_piece(self, text: bytes, begins_line: bool, ends_document: bool) -> np.ndarray:
        """Turns one piece of a document into token ids; pieces can be in any order.

        Args:
            text: bytes. The piece, without the half of a line end that an
                earlier piece ended with.
            begins_line: bool. Whether the piece begins a line.
            ends_document: bool. Whether the document ends with the piece.

        Returns:
            Vector of type `token_dtype`.

        Raises:
            InvalidTextError: As `encode`.
        """

    def decode(self, token_ids: np.ndarray | Sequence[int]) -> str:
        """Turns token ids back into text; bytes that are no UTF-8 become U+FFFD.

        Args:
            token_ids: as in `decode_bytes`.

        Raises:
            ValueError: As `decode_bytes`.
        """
        return self.decode_bytes(token_ids).decode("utf-8", errors="replace")

    def decode_bytes(self, token_ids: np.ndarray | Sequence[int]) -> bytes:
        """Turns token ids back into bytes.

        Words are joined by a space. A line's token becomes a line feed; of two
        that enclose a line, the first becomes nothing. Unknown tokens are written
        as `unknown_token`.

        Args:
            token_ids: vector of ints in `[0, vocabulary_size)`.

        Raises:
            ValueError: If an id is out of range or not an integer.
        """
        return self._decode(checked_token_ids(token_ids, self.vocabulary_size))

    @abc.abstractmethod
    def _decode(self, ids: np.ndarray) -> bytes:
        """Turns ids of the vocabulary back into bytes."""

    @abc.abstractmethod
    def graph_tokenizer(self) -> "GraphTokenizer":
        """Returns the same tokenizer as TensorFlow operations."""


def stop_tokens(tokenizer: Tokenizer, stop_texts: Sequence[str]) -> list[int]:
    """Returns the ids of the stop texts that are a single token."""
    found = []
    for stop in stop_texts:
        try:
            ids = tokenizer.encode(stop.encode())
        except InvalidTextError:
            continue  # a text that cannot be written cannot stop either
        if len(ids) == 1 and tokenizer.decode_text(ids) == stop:
            found.append(int(ids[0]))
    return found


def limited_tokens(
    tokens: list[str], size: int | None, unknown_token: str | None, *, num_special: int = 0
) -> list[str]:
    """Returns at most `size` tokens, the first ones, with the unknown one last if it is left out.

    Raises ValueError if the first `num_special` tokens and one other do not fit.
    """
    kept = tokens[:size]
    if unknown_token is not None and unknown_token not in kept:
        kept = [*tokens[: None if size is None else size - 1], unknown_token]
        num_special += 1
    if size is not None and size <= num_special:
        raise ValueError(
            f"`vocabulary_size` must be at least {num_special + 1}: {num_special} special tokens "
            f"and one other. Received: {size}"
        )
    return kept


def excluded_tokens(tokenizer: Tokenizer | None, allow_unknown: bool) -> tuple[int, ...]:
    """Returns the ids that are never written: that of unknown text, unless it is allowed."""
    unknown_id = None if tokenizer is None or allow_unknown else tokenizer.unknown_id
    return () if unknown_id is None else (unknown_id,)


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

    Raises:
        InvalidTextError: If the text is not UTF-8.
    """
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"The text is not UTF-8: byte 0x{text[error.start]:02x} ({error.reason})."
        raise InvalidTextError.at(reason, text, error.start) from error
