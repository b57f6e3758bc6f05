"""TFRecord format of token streams.

A file is a TFRecord: frames of an 8-byte little-endian length, its 4-byte checksum, the payload,
and the payload's 4-byte checksum. A payload is a `tf.train.Example` with two bytes features:
`tokens`, and `document_starts` with one bit per token, lowest bit first, which is set if a document
begins with the token. Full records have frames of equal size, so the offset of a record in its file
is a multiplication.
"""

import contextlib

import numpy as np

from txl_tf.errors import DataDamagedError
from txl_tf.imports import tensorflow as tf

TOKENS_FEATURE = "tokens"
DOCUMENT_STARTS_FEATURE = "document_starts"
LENGTH_BYTES = 8
HEADER_BYTES = 12
FOOTER_BYTES = 4
RECORDS_REMEDY = "Restore the file, or prepare the data set again."


def token_dtype(token_bytes: int) -> np.dtype:
    """Returns the little-endian type of stored tokens that are 1, 2 or 4 bytes wide."""
    return np.dtype({1: "<u1", 2: "<u2", 4: "<i4"}[token_bytes])


def frame_bytes(num_tokens: int, token_bytes: int) -> int:
    """Returns the size of a record's frame in its file, in bytes."""
    # Computed, not serialized: a damaged manifest may claim a size that exceeds memory.
    entries = sum(
        _field_bytes(_field_bytes(len(name)) + _field_bytes(_field_bytes(_field_bytes(num_bytes))))
        for name, num_bytes in (
            (TOKENS_FEATURE, num_tokens * token_bytes),
            (DOCUMENT_STARTS_FEATURE, -(-num_tokens // 8)),
        )
    )
    return HEADER_BYTES + _field_bytes(entries) + FOOTER_BYTES


def parse_frame(
    frame: bytes, num_tokens: int, token_bytes: int, *, where: str
) -> tuple[np.ndarray, np.ndarray]:
    """Parses a frame into its tokens and a bool vector of document starts, or DataDamagedError."""
    from google.protobuf.message import DecodeError

    values = {}
    if len(frame) == int.from_bytes(frame[:LENGTH_BYTES], "little") + HEADER_BYTES + FOOTER_BYTES:
        with contextlib.suppress(DecodeError):
            example = tf.train.Example.FromString(frame[HEADER_BYTES:-FOOTER_BYTES])
            features = example.features.feature.items()
            values = {name: b"".join(feature.bytes_list.value) for name, feature in features}
    tokens, bits = (values.get(name, b"") for name in (TOKENS_FEATURE, DOCUMENT_STARTS_FEATURE))
    if len(tokens) != num_tokens * token_bytes or len(bits) != -(-num_tokens // 8):
        raise DataDamagedError(
            f"The record is damaged: it must hold {num_tokens} tokens.",
            where=where,
            remedy=RECORDS_REMEDY,
        )
    starts = np.unpackbits(np.frombuffer(bits, np.uint8), count=num_tokens, bitorder="little")
    return np.frombuffer(tokens, dtype=token_dtype(token_bytes)), starts.astype(bool)


def _field_bytes(num_bytes: int) -> int:
    """Size of a protocol buffer's field: its tag, its length in groups of 7 bits, its content."""
    return 1 + max(1, -(-num_bytes.bit_length() // 7)) + num_bytes
