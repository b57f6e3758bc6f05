"""TFRecord format of token streams.

A file is a sequence of frames. A frame has an 8-byte little-endian length, the 4-byte checksum of
the length, the payload, and the 4-byte checksum of the payload. A payload is a `tf.train.Example`
with two bytes features. `tokens` has the token ids. `document_starts` has one bit per token, lowest
bit first; the bit is set if a document begins with the token. Frames of full records have equal
sizes, so the offset of a record in its file is a product.
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
    """Returns the little-endian type of stored tokens with 1, 2 or 4 bytes each."""
    return np.dtype({1: "<u1", 2: "<u2", 4: "<i4"}[token_bytes])


def frame_bytes(num_tokens: int, token_bytes: int) -> int:
    """Returns the size of a record's frame in its file, in bytes."""
    # Nothing is serialized to find the size, because a damaged manifest may claim more tokens than
    # memory can hold. A feature is three messages within each other: a list of bytes, a feature,
    # and an entry of the map by name.
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
    """Parses a frame into its tokens and a bool vector of document starts.

    Raises DataDamagedError, with the place `where`, if the frame does not have these tokens. The
    checksums of the frame are not compared.
    """
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
    """Returns the size of a field of a protocol buffer with `num_bytes` of content.

    A field has a tag of one byte, its length in bytes with 7 bits each, and its content.
    """
    return 1 + max(1, -(-num_bytes.bit_length() // 7)) + num_bytes
