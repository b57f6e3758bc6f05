"""Where in a frame its tokens are, so that many frames can be looked at at once."""

import functools
from typing import NamedTuple

import numpy as np

from txl_tf.data.record_format import (
    FOOTER_BYTES,
    HEADER_BYTES,
    LENGTH_BYTES,
    pack_document_starts,
    serialize_record,
    token_dtype,
)


class FrameLayout(NamedTuple):
    """The places in a frame of so many tokens.

    Args:
        num_bytes: int. Size of the frame.
        first_token_byte: int. Where the tokens begin.
        last_token_byte: int. One past where they end.
        fixed_places: int vector. The bytes that are the same in every frame of
            this size: its length, and what describes the payload.
        fixed_bytes: uint8 vector. What they are.
        dtype: NumPy type of a stored token.
    """

    num_bytes: int
    first_token_byte: int
    last_token_byte: int
    fixed_places: np.ndarray
    fixed_bytes: np.ndarray
    dtype: np.dtype

    @staticmethod
    @functools.lru_cache(maxsize=256)
    def of(num_tokens: int, token_bytes: int) -> "FrameLayout":
        """Returns the layout of frames of so many tokens.

        Args:
            num_tokens: int. Tokens in a record.
            token_bytes: int. Width of a token in bytes.

        Returns:
            The layout.
        """
        num_token_bytes = num_tokens * token_bytes
        num_bit_bytes = len(pack_document_starts(num_tokens, []))

        def payload(token_byte: bytes, bit_byte: bytes) -> np.ndarray:
            content = serialize_record(token_byte * num_token_bytes, bit_byte * num_bit_bytes)
            return np.frombuffer(content, np.uint8)

        zeros = payload(b"\0", b"\0")
        tokens = np.flatnonzero(payload(b"\xff", b"\0") != zeros)
        varying = payload(b"\xff", b"\xff") != zeros
        length = np.frombuffer(len(zeros).to_bytes(LENGTH_BYTES, "little"), np.uint8)
        fixed = np.flatnonzero(~varying)
        return FrameLayout(
            num_bytes=HEADER_BYTES + len(zeros) + FOOTER_BYTES,
            first_token_byte=HEADER_BYTES + int(tokens[0]),
            last_token_byte=HEADER_BYTES + int(tokens[-1]) + 1,
            fixed_places=np.concatenate([np.arange(LENGTH_BYTES), HEADER_BYTES + fixed]),
            fixed_bytes=np.concatenate([length, zeros[fixed]]),
            dtype=token_dtype(token_bytes),
        )
