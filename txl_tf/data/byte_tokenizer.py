"""The tokenizer without a vocabulary: every byte is a token."""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

_DEFINITION = b"txl-tf tokenizer; kind bytes; version 1; 256 ids; id = value of the byte"


class ByteTokenizer:
    """Reads text as bytes, with the value of the byte as its token id.

    Any input is valid and `decode(encode(text)) == text` always holds, whether
    or not the bytes are UTF-8.
    """

    kind = "bytes"
    vocabulary_size = 256
    token_dtype = np.dtype("u1")

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of what defines the tokenizer."""
        return hashlib.sha256(_DEFINITION).hexdigest()

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

    def decode(self, token_ids: np.ndarray | Sequence[int]) -> bytes:
        """Turns token ids back into bytes.

        Args:
            token_ids: vector of ints in `[0, 256)`.

        Returns:
            The bytes.

        Raises:
            ValueError: If an id is out of range or not an integer.
        """
        ids = np.asarray(token_ids)
        if ids.size == 0:
            return b""
        if ids.dtype.kind not in "iu":
            raise ValueError(f"`token_ids` must be integers. Received: dtype {ids.dtype}")
        if ids.min() < 0 or ids.max() >= self.vocabulary_size:
            raise ValueError(
                f"`token_ids` must be in [0, {self.vocabulary_size}). "
                f"Received: ids from {ids.min()} to {ids.max()}"
            )
        return ids.astype(self.token_dtype).tobytes()
