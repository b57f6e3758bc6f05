"""Turns chunks of text into tokens."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from txl_tf.data.parallel.text_piece import TextPiece
from txl_tf.data.parallel.token_chunk import TokenChunk
from txl_tf.data.text_counts import TextCounts
from txl_tf.data.tokenizer import Tokenizer
from txl_tf.data.tokenizers.invalid_text_error import InvalidTextError
from txl_tf.data.tokenizers.load_tokenizer import load_tokenizer
from txl_tf.errors import DataDamagedError


class ChunkEncoding:
    """Encodes chunks with a tokenizer; every piece can be encoded by itself.

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
        encode_piece = getattr(self._tokenizer, "encode_piece", None)
        if encode_piece is None:
            return self._tokenizer.encode(piece.text)
        return encode_piece(line_text(piece), piece.begins_line, piece.ends_document)


def line_text(piece: TextPiece) -> bytes:
    """The text of a piece without the half of a line end that an earlier piece ended with."""
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
