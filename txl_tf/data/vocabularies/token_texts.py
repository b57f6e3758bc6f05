"""Splits of text as tokens."""

from collections.abc import Iterator
from typing import Protocol

from txl_tf.data.parallel.token_chunk import TokenChunk
from txl_tf.data.tokenizer import Tokenizer


class TokenTexts(Protocol):
    """The tokens of the splits of a text, and the tokenizer they are of."""

    tokenizer: Tokenizer

    def chunks(self, split: str) -> Iterator[TokenChunk]:
        """Yields the tokens of a split, in order."""
