"""The tokenizer without a vocabulary: every byte is a token."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np

from txl_tf.data.tokenizers.tokenizer import Tokenizer, checked_token_ids

if TYPE_CHECKING:
    from txl_tf.data.tokenizers.graph_tokenizers import GraphByteTokenizer


class ByteTokenizer(Tokenizer):
    """Byte tokenizer: the token id is the value of the byte.

    Any input is valid and `decode(encode(text)) == text` always holds, whether
    or not the bytes are UTF-8.
    """

    kind = "bytes"
    _definition = b"txl-tf tokenizer; kind bytes; version 1; 256 ids; id = value of the byte"
    vocabulary_size = 256
    token_dtype = np.dtype("u1")

    @classmethod
    def from_vocabulary_files(cls, files: Mapping[str, bytes]) -> Self:
        if files:
            raise ValueError(f"Bytes have no vocabulary. Received: {', '.join(files)}")
        return cls()

    @property
    def vocabulary_files(self) -> Mapping[str, bytes]:
        """Names and contents of the files that a data set keeps; none here."""
        return {}

    def encode(self, text: bytes) -> np.ndarray:
        """Turns bytes into token ids.

        Args:
            text: bytes. The text, in any encoding.

        Returns:
            uint8 vector with one id per byte; it shares memory with `text`.
        """
        return np.frombuffer(text, dtype=self.token_dtype)

    def encode_piece(self, text: bytes, begins_line: bool, ends_document: bool) -> np.ndarray:
        return self.encode(text)

    def decode(self, token_ids: np.ndarray | Sequence[int]) -> bytes:
        """Turns token ids back into bytes.

        Args:
            token_ids: vector of ints in `[0, 256)`.

        Returns:
            The bytes.

        Raises:
            ValueError: If an id is out of range or not an integer.
        """
        ids = checked_token_ids(token_ids, self.vocabulary_size)
        return ids.astype(self.token_dtype).tobytes()

    def graph_tokenizer(self) -> "GraphByteTokenizer":
        from txl_tf.data.tokenizers.graph_tokenizers import GraphByteTokenizer

        return GraphByteTokenizer()
