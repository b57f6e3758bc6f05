"""The first pass: how many tokens there are in every chunk."""

from typing import Any

from txl_tf.data.parallel.chunk_encoding import ChunkEncoding
from txl_tf.data.parallel.text_piece import TextPiece
from txl_tf.data.tokenizer import Tokenizer


class TokenCounting:
    """Counts the tokens and the text of chunks.

    Args:
        tokenizer: `Tokenizer`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encoding = ChunkEncoding(tokenizer)

    def __call__(self, chunk: tuple[str, int, list[TextPiece]]) -> dict[str, Any]:
        """Counts a chunk.

        Args:
            chunk: tuple, as `ChunkReading` gives it.

        Returns:
            Dict of JSON values.
        """
        split, number, pieces = chunk
        tokens = self._encoding(pieces)
        return {
            "split": split,
            "chunk": number,
            "tokens": len(tokens.token_ids),
            "counts": list(tokens.counts),
        }
