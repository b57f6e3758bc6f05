"""Tokenizer interface, with checks of token ids and of UTF-8 text."""

import abc
import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from txl_tf.data.records import token_dtype
from txl_tf.data.text import DocumentPiece, TextCounts, document_pieces, split_at_lines
from txl_tf.errors import DataDamagedError

EncodedBatch = tuple[np.ndarray, np.ndarray, TextCounts]
"""Token ids, the int64 places among them where documents begin, and counts of the text. A place one
past the end stands for the next batch's first token."""
_Result = TypeVar("_Result")


class InvalidTextError(ValueError):
    """Text that the tokenizer can neither encode nor drop silently.

    `offset_bytes` counts from 0, `line` from 1 with lines ending at LF, both in the text given.
    """

    def __init__(self, reason: str, *, offset_bytes: int, line: int, document: str = "") -> None:
        self.reason = reason
        self.document = document
        self.offset_bytes = offset_bytes
        self.line = line
        super().__init__(f"{reason} Received: line {line}, byte {offset_bytes}")

    @classmethod
    def at(cls, reason: str, text: bytes, offset_bytes: int) -> Self:
        """Builds the error for a byte offset of the text given to the tokenizer."""
        line = text.count(b"\n", 0, offset_bytes) + 1
        return cls(reason, offset_bytes=offset_bytes, line=line)

    def damaged(self, where: str, remedy: str) -> DataDamagedError:
        """Returns the error for the file or text `where`; line and byte are added."""
        place = f"{where}, line {self.line}, byte {self.offset_bytes}"
        return DataDamagedError(self.reason, where=place, remedy=remedy)


@contextlib.contextmanager
def damaged_text() -> Iterator[None]:
    """Converts InvalidTextError of `map_pieces` to DataDamagedError with split and document."""
    try:
        yield
    except InvalidTextError as error:
        remedy = "Correct the text, or prepare it with the byte tokenizer."
        raise error.damaged(error.document, remedy) from error


def map_pieces(
    function: Callable[[bytes, bool, bool], _Result],
    pieces: Iterable[DocumentPiece],
    reads_lines: bool = True,
) -> list[_Result]:
    """Applies a function of text, `begins_line` and `ends_document` to pieces.

    With `reads_lines` the LF of a CR LF that two pieces share is dropped. The place of an
    InvalidTextError counts from the beginning of the document.
    """
    results = []
    for piece in pieces:
        skipped = reads_lines and piece.splits_line_end
        try:
            results.append(function(piece.text[skipped:], piece.begins_line, piece.ends_document))
        except InvalidTextError as error:
            raise InvalidTextError(
                error.reason,
                offset_bytes=error.offset_bytes + piece.offset_bytes + skipped,
                line=error.line + piece.offset_lines + skipped,
                document=f"split {piece.split}, document {piece.document}",
            ) from error
    return results


_REPLACEMENT = "\ufffd"


class Tokenizer(abc.ABC):
    """Base class of tokenizers.

    A tokenizer converts bytes to token ids and back. Its `fingerprint` covers everything that
    determines the ids, so that data sets, checkpoints and exports can be compared.

    `encode(decode_bytes(token_ids))` returns the ids of a document, with two exceptions. A
    `CharacterTokenizer` reads an `unknown_token` of several characters as these characters.
    Generation can draw ids that `encode` does not return, such as two pieces instead of one longer
    piece, or words without the token of their line end.

    A subclass defines `kind`, `vocabulary_size`, `token_dtype` and the abstract
    methods.
    """

    kind: str
    vocabulary_size: int
    token_dtype: np.dtype
    reads_lines: ClassVar[bool] = False
    """True if ids depend on line ends; then CR LF is one line end, even if a piece cuts it."""
    joins_marks: bool = False
    """True if `readable` joins words at the marks of WikiText; such text encodes differently."""
    unknown_id: int | None = None
    """Id of text outside the vocabulary, or `None`."""
    _definition: ClassVar[bytes]

    @classmethod
    @abc.abstractmethod
    def from_vocabulary_files(cls, files: Mapping[str, bytes]) -> Self:
        """Builds the tokenizer from the vocabulary files of a data set.

        Args:
            files: dict of name to content, as in `vocabulary_files`.

        Raises:
            ValueError: If the files are not such a vocabulary.
        """

    @property
    @abc.abstractmethod
    def vocabulary_files(self) -> Mapping[str, bytes]:
        """Names and contents of the vocabulary files of a data set."""

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of the definition of the tokenizer."""
        files = self.vocabulary_files
        content = b"".join([self._definition, *(files[name] for name in sorted(files))])
        return hashlib.sha256(content).hexdigest()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(vocabulary_size={self.vocabulary_size})"

    @property
    def end_token_id(self) -> int | None:
        """Id of the token after every sentence or document, or `None`."""
        return None

    def token_texts(self) -> list[bytes]:
        """Returns the text of every token, in the order of their ids.

        Tokens of two vocabularies are the same if their texts are. A piece keeps
        the mark of its place in a word.
        """
        return [self.decode_bytes([token_id]) for token_id in range(self.vocabulary_size)]

    def decode_text(self, token_ids: np.ndarray | Sequence[int]) -> str:
        """Converts token ids to readable text; invalid UTF-8 becomes U+FFFD.

        Args:
            token_ids: vector of ints in `[0, vocabulary_size)`.

        Returns:
            The text, converted by `readable`.

        Raises:
            ValueError: If an id is out of range or not an integer.
        """
        return self.decode_after([], token_ids)

    def decode_after(
        self, earlier_ids: np.ndarray | Sequence[int], token_ids: np.ndarray | Sequence[int]
    ) -> str:
        """Converts token ids to the readable text that they add to earlier ids.

        Args:
            earlier_ids: vector of ints in `[0, vocabulary_size)`. Ids of the text shown before,
                which does not change.
            token_ids: See `decode_text`.

        Returns:
            The text of `token_ids`, with any space before it.

        Raises:
            ValueError: See `decode_text`.
        """
        both = np.concatenate([np.asarray(ids, np.int64) for ids in (earlier_ids, token_ids)])
        before = len(self.decode(both[: len(earlier_ids)]))
        return self.readable(self.decode(both)[before:])

    def readable(self, text: str) -> str:
        """Returns decoded text in its ordinary written form; here unchanged."""
        return text

    def num_certain(self, readable: str) -> int:
        """Counts the characters of a readable text that later tokens cannot change.

        A character, or a mark that `readable` replaces, may take several tokens.
        """
        return len(readable.rstrip(_REPLACEMENT))

    def encode(self, text: bytes | str) -> np.ndarray:
        """Converts a document to token ids.

        Args:
            text: bytes, UTF-8 unless the tokenizer takes any bytes; or str. A byte
                order mark at its beginning is dropped.

        Returns:
            Vector of type `token_dtype`.

        Raises:
            InvalidTextError: If the text is not UTF-8, or is not in the vocabulary and there is no
                unknown token.
        """
        content = text.encode() if isinstance(text, str) else text
        pieces = document_pieces(split_at_lines([content]))
        return np.concatenate(map_pieces(self.encode_piece, pieces, self.reads_lines))

    @abc.abstractmethod
    def encode_piece(self, text: bytes, begins_line: bool, ends_document: bool) -> np.ndarray:
        """Converts one piece of a document to token ids; pieces can be in any order.

        Args:
            text: bytes. The piece, without the LF of a CR LF whose CR ended the piece before.
            begins_line: bool. True if the piece begins a line.
            ends_document: bool. True if the document ends with the piece.

        Returns:
            Vector of type `token_dtype`.

        Raises:
            InvalidTextError: See `encode`.
        """

    def decode(self, token_ids: np.ndarray | Sequence[int]) -> str:
        """Converts token ids to text; invalid UTF-8 becomes U+FFFD.

        Args:
            token_ids: See `decode_bytes`.

        Raises:
            ValueError: See `decode_bytes`.
        """
        return self.decode_bytes(token_ids).decode("utf-8", errors="replace")

    def decode_bytes(self, token_ids: np.ndarray | Sequence[int]) -> bytes:
        """Converts token ids to bytes.

        Words are joined by spaces. The token of a line becomes a line feed; of two tokens that
        enclose a line, the first is dropped. Unknown tokens are written as `unknown_token`.

        Args:
            token_ids: vector of ints in `[0, vocabulary_size)`.

        Raises:
            ValueError: If an id is out of range or not an integer.
        """
        return self._decode(checked_token_ids(token_ids, self.vocabulary_size))

    def decode_each(self, token_ids: np.ndarray) -> list[str]:
        """Decodes each token alone; bytes that are not UTF-8 are escaped."""
        found = (self.decode_bytes(token_ids[k : k + 1]) for k in range(len(token_ids)))
        return [each.decode("utf-8", errors="backslashreplace") for each in found]

    @abc.abstractmethod
    def _decode(self, ids: np.ndarray) -> bytes:
        """Converts ids of the vocabulary to bytes."""


def stop_tokens(tokenizer: Tokenizer, stop_texts: Sequence[str]) -> list[int]:
    """Returns the ids of those stop texts that are a single token."""
    found = []
    for stop in stop_texts:
        try:
            ids = tokenizer.encode(stop.encode())
        except InvalidTextError:
            continue  # text that cannot be encoded is never generated
        if len(ids) == 1 and tokenizer.decode_text(ids) == stop:
            found.append(int(ids[0]))
    return found


def excluded_tokens(tokenizer: Tokenizer | None, allow_unknown: bool) -> tuple[int, ...]:
    """Returns the ids that are never generated: the unknown token's, unless it is allowed."""
    unknown_id = None if tokenizer is None or allow_unknown else tokenizer.unknown_id
    return () if unknown_id is None else (unknown_id,)


def narrowest_token_dtype(vocabulary_size: int) -> np.dtype:
    """Returns the narrowest stored type, of 1, 2 or 4 bytes, for every id of a vocabulary."""
    return token_dtype(1 if vocabulary_size <= 1 << 8 else 2 if vocabulary_size <= 1 << 16 else 4)


def checked_token_ids(token_ids: np.ndarray | Sequence[int], vocabulary_size: int) -> np.ndarray:
    """Returns ids as an integer vector; raises ValueError for one outside the vocabulary."""
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
    """Decodes UTF-8 strictly; raises InvalidTextError if the text is not UTF-8."""
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"The text is not UTF-8: byte 0x{text[error.start]:02x} ({error.reason})."
        raise InvalidTextError.at(reason, text, error.start) from error


class BatchEncoder:
    """Encoder of text batches; only the tokenizer's class and vocabulary are pickled."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer: Tokenizer | None = tokenizer
        self._class, self._files = type(tokenizer), dict(tokenizer.vocabulary_files)

    def __getstate__(self) -> dict[str, Any]:
        # A worker loads it on first use, because some kinds import TensorFlow.
        return {**self.__dict__, "_tokenizer": None}

    def __call__(self, pieces: Sequence[DocumentPiece]) -> EncodedBatch:
        """Encodes at least one piece; raises DataDamagedError for text that cannot be encoded."""
        if self._tokenizer is None:
            self._tokenizer = self._class.from_vocabulary_files(self._files)
        with damaged_text():
            parts = map_pieces(self._tokenizer.encode_piece, pieces, self._tokenizer.reads_lines)
        places = np.cumsum([0, *map(len, parts[:-1])], dtype=np.int64)
        starts = places[[piece.begins_document for piece in pieces]]
        return np.concatenate(parts), starts, TextCounts.of(pieces)
