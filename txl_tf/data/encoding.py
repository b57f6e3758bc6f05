"""Encoding of text into token ids, one batch per worker process."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from txl_tf.data.text import Document, TextCounts, TextPiece, text_chunks
from txl_tf.data.tokenizers import load_tokenizer
from txl_tf.data.tokenizers.tokenizer import InvalidTextError, Tokenizer
from txl_tf.data.workers import OrderedWorkers
from txl_tf.errors import DataDamagedError


class TokenChunk(NamedTuple):
    """Tokens, document starts and text counts of consecutive pieces of a split.

    Args:
        token_ids: int vector. The tokens.
        document_starts: int64 vector. The places in `token_ids` where documents
            begin; one past the last for one that begins with the next token.
        counts: `TextCounts`. Counts of the text.
    """

    token_ids: np.ndarray
    document_starts: np.ndarray
    counts: TextCounts


class ChunkEncoding:
    """Encoder of text chunks; each piece can be encoded on its own.

    To another process only kind and vocabulary are sent.

    Args:
        tokenizer: `Tokenizer`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __getstate__(self) -> dict[str, Any]:
        return {"kind": self._tokenizer.kind, "files": dict(self._tokenizer.vocabulary_files)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._tokenizer = load_tokenizer(state["kind"], state["files"])

    def __call__(self, pieces: Sequence[TextPiece]) -> TokenChunk:
        """Encodes a chunk.

        Args:
            pieces: sequence of `TextPiece`, at least one.

        Returns:
            The `TokenChunk`.

        Raises:
            DataDamagedError: If the text is not one that the tokenizer takes.
        """
        parts = [located(self._encode, piece) for piece in pieces]
        starts = document_starts(pieces, [len(part) for part in parts])
        token_ids = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return TokenChunk(token_ids, starts, TextCounts.of(pieces))

    def _encode(self, piece: TextPiece) -> np.ndarray:
        text = line_text(piece) if self._tokenizer.reads_lines else piece.text
        return self._tokenizer.encode_piece(text, piece.begins_line, piece.ends_document)


def line_text(piece: TextPiece) -> bytes:
    """Returns a piece without the part of a line end that the previous piece contained."""
    return piece.text[1:] if piece.splits_line_end else piece.text


def document_starts(pieces: Sequence[TextPiece], num_tokens: Sequence[int]) -> np.ndarray:
    """Returns the places of the tokens that begin documents.

    Args:
        pieces: sequence of `TextPiece`.
        num_tokens: sequence of int. Tokens of every piece.

    Returns:
        int64 vector.
    """
    places = np.cumsum([0, *num_tokens[:-1]], dtype=np.int64)
    return places[[piece.begins_document for piece in pieces]]


def located(function: Callable[[TextPiece], Any], piece: TextPiece) -> Any:
    """Calls a function of a piece, and says of invalid text where it is.

    Args:
        function: function of a `TextPiece`.
        piece: `TextPiece`.

    Returns:
        What the function returns.

    Raises:
        DataDamagedError: If the text is not one that the tokenizer takes.
    """
    try:
        return function(piece)
    except InvalidTextError as error:
        skipped = int(piece.splits_line_end)
        line = piece.offset_lines + skipped + error.line
        offset = piece.offset_bytes + skipped + error.offset_bytes
        raise DataDamagedError(
            error.reason,
            where=f"split {piece.split}, document {piece.document}, line {line}, byte {offset}",
            remedy="Correct the text, or prepare it with the byte tokenizer.",
        ) from error


class EncodedTexts:
    """Splits of a text, encoded with a given tokenizer.

    Args:
        splits: dict of split name to documents.
        tokenizer: `Tokenizer`.
        workers: `OrderedWorkers`. Who encodes.
    """

    def __init__(
        self,
        splits: Mapping[str, Iterable[Document]],
        tokenizer: Tokenizer,
        workers: OrderedWorkers,
    ) -> None:
        self.tokenizer = tokenizer
        self._splits = splits
        self._workers = workers
        self._encoding = ChunkEncoding(tokenizer)

    def chunks(self, split: str) -> Iterator[TokenChunk]:
        """Encodes a split.

        Args:
            split: str. Name of the split.

        Yields:
            The tokens, in order.

        Raises:
            DataDamagedError: If the text is not one that the tokenizer takes.
        """
        return self._workers.map(self._encoding, text_chunks(split, self._splits[split]))


class TokenTexts(Protocol):
    """Interface of encoded splits: chunks of tokens and their tokenizer."""

    tokenizer: Tokenizer

    def chunks(self, split: str) -> Iterator[TokenChunk]:
        """Yields the tokens of a split, in order."""
