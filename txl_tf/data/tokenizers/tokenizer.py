"""Tokenizer interface, with checks of token ids and of UTF-8 text."""

import abc
import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from txl_tf.errors import DataDamagedError

BYTE_ORDER_MARK = "\ufeff".encode()
_REPLACEMENT = "\ufffd"
# Vocabulary files of several tokenizers: the tokens, one on each line, and the options.
TOKENS_FILE = "vocabulary.txt"
OPTIONS_FILE = "vocabulary.json"


def document_bytes(text: bytes | str) -> bytes:
    """Returns a document, or its first piece, in UTF-8 without a byte order mark."""
    content = text.encode() if isinstance(text, str) else text
    return content.removeprefix(BYTE_ORDER_MARK)


class InvalidTextError(ValueError):
    """Text that the tokenizer can neither encode nor drop silently.

    `offset_bytes` counts from 0, `line` from 1 with lines ending at LF, both in the text given.
    """

    def __init__(self, reason: str, text: bytes, offset_bytes: int) -> None:
        self.reason = reason
        self.offset_bytes = offset_bytes
        self.line = text.count(b"\n", 0, offset_bytes) + 1
        super().__init__(f"{reason} Received: line {self.line}, byte {offset_bytes}")

    def damaged(
        self, where: str, remedy: str, *, lines_before: int = 0, bytes_before: int = 0
    ) -> DataDamagedError:
        """Returns the error for the file or text `where`, with line and byte."""
        line, byte = self.line + lines_before, self.offset_bytes + bytes_before
        place = f"{where}, line {line}, byte {byte}"
        return DataDamagedError(self.reason, where=place, remedy=remedy)


class Tokenizer(abc.ABC):
    """Base class of tokenizers.

    A tokenizer converts bytes to token ids and back. Its `fingerprint` covers everything that
    determines the ids, so that data sets, checkpoints and exports can be compared.

    `encode(decode_bytes(token_ids))` returns the ids of a document, with two exceptions. A
    `CharacterTokenizer` reads an `unknown_token` of several characters as these characters.
    Generation can draw ids that `encode` does not return, such as two pieces instead of one longer
    piece, or words without the token of their line end.

    A subclass defines `kind`, `vocabulary_size` and the abstract methods.
    """

    kind: str
    vocabulary_size: int
    reads_lines: bool = False
    """True if ids depend on line ends."""
    joins_marks: bool = False
    """True if `readable` joins words at the marks of WikiText; such text encodes differently."""
    unknown_id: int | None = None
    """Id of text outside the vocabulary, or `None`."""
    end_token_id: int | None = None
    """Id of the token after every sentence or document, or `None`."""

    @classmethod
    @abc.abstractmethod
    def from_vocabulary_files(cls, files: Mapping[str, bytes]) -> Self:
        """Builds the tokenizer from `vocabulary_files`; ValueError if they are damaged."""

    @property
    @abc.abstractmethod
    def vocabulary_files(self) -> Mapping[str, bytes]:
        """Names and contents of the vocabulary files of a data set."""

    @property
    def token_dtype(self) -> np.dtype:
        """Narrowest stored type for every id."""
        return narrowest_token_dtype(self.vocabulary_size)

    @property
    def _definition(self) -> bytes:
        return f"txl-tf tokenizer; kind {self.kind}; version 1\n".encode()

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of the definition of the tokenizer."""
        files = self.vocabulary_files
        content = b"".join([self._definition, *(files[name] for name in sorted(files))])
        return hashlib.sha256(content).hexdigest()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(vocabulary_size={self.vocabulary_size})"

    def __getstate__(self) -> dict[str, Any]:
        # TensorFlow's objects cannot be pickled; a worker makes its own on first use.
        return {name: value for name, value in vars(self).items() if name != "operations"}

    def token_texts(self) -> list[bytes]:
        """Returns the text of every token, in the order of their ids.

        Tokens of two vocabularies are the same if their texts are. A piece keeps the mark of its
        place in a word.
        """
        return [self.decode_bytes([token_id]) for token_id in range(self.vocabulary_size)]

    def encode(self, text: bytes | str, *, ends_document: bool = True) -> np.ndarray:
        """Converts a document, or its beginning, to token ids.

        Args:
            text: bytes, UTF-8 unless the tokenizer takes any bytes; or str. A byte
                order mark at its beginning is dropped.
            ends_document: bool. True if the document ends with the text, which completes a last
                line without a line end. Defaults to `True`.

        Returns:
            Vector of type `token_dtype`.

        Raises:
            InvalidTextError: If the text is not UTF-8, or is not in the vocabulary and there is no
                unknown token.
        """
        return self.encode_piece(document_bytes(text), True, ends_document)

    @abc.abstractmethod
    def encode_piece(self, text: bytes, begins_line: bool, ends_document: bool) -> np.ndarray:
        """Converts one piece of a document to token ids, as `encode` does.

        Pieces can be in any order; none begins within a CR LF. The flags tell if the piece begins
        a line, and if the document ends with it.
        """

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
        pieces = (self.decode_bytes(token_ids[k : k + 1]) for k in range(len(token_ids)))
        return [each.decode("utf-8", errors="backslashreplace") for each in pieces]

    @abc.abstractmethod
    def _decode(self, ids: np.ndarray) -> bytes:
        """Converts ids of the vocabulary to bytes."""

    def decode(self, token_ids: np.ndarray | Sequence[int]) -> str:
        """Converts token ids to text as `decode_bytes` does; invalid UTF-8 becomes U+FFFD."""
        return self.decode_bytes(token_ids).decode("utf-8", errors="replace")

    def decode_text(self, token_ids: np.ndarray | Sequence[int]) -> str:
        """Converts token ids to text as `decode` does, in the form of `readable`."""
        return self.decode_after([], token_ids)

    def decode_after(
        self, earlier_ids: np.ndarray | Sequence[int], token_ids: np.ndarray | Sequence[int]
    ) -> str:
        """Converts token ids to the readable text that they add to the text of earlier ids.

        A space between the two belongs to the added text.
        """
        both = np.concatenate([np.asarray(ids, np.int64) for ids in (earlier_ids, token_ids)])
        return self.readable(self.decode(both)[len(self.decode(both[: len(earlier_ids)])) :])

    def readable(self, text: str) -> str:
        """Returns decoded text in its ordinary written form; here unchanged."""
        return text

    def num_certain(self, readable: str) -> int:
        """Counts the characters of a readable text that later tokens cannot change.

        A character, or a mark that `readable` replaces, may take several tokens.
        """
        return len(readable.rstrip(_REPLACEMENT))


def excluded_tokens(tokenizer: Tokenizer | None, allow_unknown: bool) -> tuple[int, ...]:
    """Returns the ids that are never generated: the unknown token's, unless it is allowed."""
    unknown_id = None if tokenizer is None or allow_unknown else tokenizer.unknown_id
    return () if unknown_id is None else (unknown_id,)


def narrowest_token_dtype(vocabulary_size: int) -> np.dtype:
    """Returns the narrowest stored type, of 1, 2 or 4 bytes, for every id of a vocabulary."""
    if vocabulary_size <= 1 << 8:
        return np.dtype("<u1")
    return np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<i4")


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
        raise InvalidTextError(reason, text, error.start) from error
