"""Tokenizer of bytes."""

from collections.abc import Mapping
from typing import Self

import numpy as np

from txl_tf.data.tokenizers.tokenizer import Tokenizer


class ByteTokenizer(Tokenizer):
    """Tokenizer whose token ids are the values of the bytes.

    Any input is valid, also if it is not UTF-8. `decode_bytes(encode(text)) == text` always holds,
    except for a byte order mark at the beginning.
    """

    kind = "bytes"
    vocabulary_size = 256
    _definition = b"txl-tf tokenizer; kind bytes; version 1; 256 ids; id = value of the byte"

    @classmethod
    def from_vocabulary_files(cls, files: Mapping[str, bytes]) -> Self:
        if files:
            raise ValueError(f"There must be no vocabulary file. Received: {', '.join(files)}")
        return cls()

    @property
    def vocabulary_files(self) -> Mapping[str, bytes]:
        """Empty dict, because bytes need no vocabulary file."""
        return {}

    def encode_piece(self, text: bytes, begins_line: bool, ends_document: bool) -> np.ndarray:
        return np.frombuffer(text, np.uint8)

    def _decode(self, ids: np.ndarray) -> bytes:
        return ids.astype(np.uint8).tobytes()
