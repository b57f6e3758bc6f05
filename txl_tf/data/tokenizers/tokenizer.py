"""Interface of tokenizers, and checks of token ids and of UTF-8 text."""

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
    """Returns a document, or its first piece, as bytes without a byte order mark."""
    content = text.encode() if isinstance(text, str) else text
    return content.removeprefix(BYTE_ORDER_MARK)


class InvalidTextError(ValueError):
    """Text that a tokenizer cannot encode, and must not drop silently.

    `offset_bytes` counts from 0 and `line` from 1, both in the text of the call. A line ends at LF.
    """

    def __init__(self, reason: str, text: bytes, offset_bytes: int) -> None:
        self.reason = reason
        self.offset_bytes = offset_bytes
        self.line = text.count(b"\n", 0, offset_bytes) + 1
        super().__init__(f"{reason} Received: line {self.line}, byte {offset_bytes}")

    def damaged(
        self, where: str, remedy: str, *, lines_before: int = 0, bytes_before: int = 0
    ) -> DataDamagedError:
        """Returns the error for the file or text `where`, with the line and the byte.

        `lines_before` and `bytes_before` count those before the text of the call.
        """
        line, byte = self.line + lines_before, self.offset_bytes + bytes_before
        place = f"{where}, line {line}, byte {byte}"
        return DataDamagedError(self.reason, where=place, remedy=remedy)


class Tokenizer(abc.ABC):
    """Base class of tokenizers.

    A tokenizer converts bytes to token ids and back. Its `fingerprint` covers everything that
    determines the ids, so that data sets, checkpoints and exports can be compared.

    `encode(decode_bytes(token_ids))` returns the same ids, with three exceptions. A byte order mark
    at the beginning of a text is dropped. A `CharacterTokenizer` reads an `unknown_token` of
    several characters as these characters. Generation can draw ids that `encode` never returns,
    such as two pieces instead of one longer piece, or words without the token of their line end.

    A subclass sets `kind` and `vocabulary_size`, and defines the abstract methods.
    """

    kind: str
    vocabulary_size: int
    reads_lines: bool = False
    """True if ids depend on line ends."""
    joins_marks: bool = False
    """True if `readable` joins words at the marks of WikiText. Joined text has other token ids."""
    unknown_id: int | None = None
    """Id of the token for text outside the vocabulary, or `None`."""
    end_token_id: int | None = None
    """Id of the token after every sentence or document, or `None`."""

    @classmethod
    @abc.abstractmethod
    def from_vocabulary_files(cls, files: Mapping[str, bytes]) -> Self:
        """Builds the tokenizer from its `vocabulary_files`; an error if they are damaged.

        `load_tokenizer` turns the errors, which need not be ValueErrors, into one DataDamagedError.
        """

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
        # Objects of TensorFlow cannot be pickled. A worker creates its own at their first use.
        return {name: value for name, value in vars(self).items() if name != "operations"}

    def token_texts(self) -> list[bytes]:
        """Returns the text of every token, in the order of the ids.

        Tokens of two vocabularies are the same if their texts are the same. The text of a piece
        includes the mark that tells its place in a word.
        """
        return [self.decode_bytes([token_id]) for token_id in range(self.vocabulary_size)]

    def encode(self, text: bytes | str, *, ends_document: bool = True) -> np.ndarray:
        """Converts a document, or its beginning, to token ids.

        Args:
            text: str or bytes, which must be UTF-8 unless the tokenizer accepts any bytes. A byte
                order mark at the beginning is dropped.
            ends_document: bool. If `True`, the document ends with the text, so a last line without
                a line end is complete. Defaults to `True`.

        Returns:
            Vector of token ids of type `token_dtype`.

        Raises:
            InvalidTextError: If the text is not UTF-8, or has a part that is not in the vocabulary
                and there is no unknown token.
        """
        return self.encode_piece(document_bytes(text), True, ends_document)

    @abc.abstractmethod
    def encode_piece(self, text: bytes, begins_line: bool, ends_document: bool) -> np.ndarray:
        """Converts one piece of a document to token ids, as `encode` does.

        Pieces can be converted in any order. No piece may begin within a CR LF. `begins_line` tells
        whether the piece begins a line, `ends_document` whether the document ends with it.
        """

    def decode_bytes(self, token_ids: np.ndarray | Sequence[int]) -> bytes:
        """Converts token ids to bytes.

        Words are joined by spaces. The token that marks the end of a line becomes a line feed. If
        tokens mark both ends, the first one is dropped. The unknown token becomes `unknown_token`.

        Args:
            token_ids: vector of ints in `[0, vocabulary_size)`.

        Raises:
            ValueError: If an id is out of range or not an integer.
        """
        return self._decode(checked_token_ids(token_ids, self.vocabulary_size))

    def decode_each(self, token_ids: np.ndarray) -> list[str]:
        """Decodes each token separately; bytes that are not UTF-8 are escaped."""
        pieces = (self.decode_bytes(token_ids[k : k + 1]) for k in range(len(token_ids)))
        return [each.decode("utf-8", errors="backslashreplace") for each in pieces]

    @abc.abstractmethod
    def _decode(self, ids: np.ndarray) -> bytes:
        """Converts ids, which were checked, to bytes."""

    def decode(self, token_ids: np.ndarray | Sequence[int]) -> str:
        """Converts token ids to text as `decode_bytes` does; invalid UTF-8 becomes U+FFFD."""
        return self.decode_bytes(token_ids).decode("utf-8", errors="replace")

    def decode_text(self, token_ids: np.ndarray | Sequence[int]) -> str:
        """Converts token ids to text as `decode` does, in the form of `readable`."""
        return self.decode_after([], token_ids)

    def decode_after(
        self, earlier_ids: np.ndarray | Sequence[int], token_ids: np.ndarray | Sequence[int]
    ) -> str:
        """Converts token ids to the readable text that they add after the text of earlier ids.

        A space between both texts belongs to the added text.
        """
        both = np.concatenate([np.asarray(ids, np.int64) for ids in (earlier_ids, token_ids)])
        return self.readable(self.decode(both)[len(self.decode(both[: len(earlier_ids)])) :])

    def readable(self, text: str) -> str:
        """Returns decoded text in its ordinary written form, which is the same text by default."""
        return text

    def num_certain(self, readable: str) -> int:
        """Counts the characters of a readable text that later tokens cannot change.

        A character, or a mark that `readable` replaces, may consist of several tokens.
        """
        return len(readable.rstrip(_REPLACEMENT))


def excluded_tokens(tokenizer: Tokenizer | None, allow_unknown: bool) -> tuple[int, ...]:
    """Returns the ids that generation excludes: the unknown token, unless it is allowed."""
    unknown_id = None if tokenizer is None or allow_unknown else tokenizer.unknown_id
    return () if unknown_id is None else (unknown_id,)


def narrowest_token_dtype(vocabulary_size: int) -> np.dtype:
    """Returns the narrowest stored type, of 1, 2 or 4 bytes, that can hold every id."""
    if vocabulary_size <= 1 << 8:
        return np.dtype("<u1")
    return np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<i4")


def checked_token_ids(token_ids: np.ndarray | Sequence[int], vocabulary_size: int) -> np.ndarray:
    """Returns ids as an array of integers; ValueError if an id is outside the vocabulary."""
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
    """Decodes UTF-8 strictly; InvalidTextError if the text is not UTF-8."""
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidTextError(
            f"The text is not UTF-8: byte 0x{text[error.start]:02x} ({error.reason}).",
            text,
            error.start,
        ) from error
