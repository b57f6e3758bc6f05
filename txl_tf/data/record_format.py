"""How tokens lie in a record, and a record in a file.

A file is a TFRecord: frames of an 8-byte little-endian length, a 4-byte check
of it, the payload, and a 4-byte check of the payload. A payload is a
`tf.train.Example` with two bytes features: `tokens`, and `document_starts` with
a bit for every token, lowest bit first, that is set where a document begins.
Full records have frames of one size, which makes the place of a record in its
file a multiplication.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from txl_tf.errors import DataDamagedError

TOKENS_PER_RECORD = 4096
"""Tokens of a record unless told otherwise. A row begins in the middle of a record, and the
whole record is read for it: a step of short segments needs little more than that."""
SHARD_BYTES = 16_000_000
"""Size of a file unless told otherwise. Clients of stores read ahead up to the end of a file,
64 MiB and more where nothing stops them: the files bound what a row reads before its first step."""
TOKENS_FEATURE = "tokens"
DOCUMENT_STARTS_FEATURE = "document_starts"
LENGTH_BYTES = 8
HEADER_BYTES = 12
FOOTER_BYTES = 4
_REMEDY = "Restore the file, or prepare the data set again."


def token_dtype(token_bytes: int) -> np.dtype:
    """Returns the type that tokens of that width are stored with.

    Args:
        token_bytes: int. 1, 2 or 4.

    Returns:
        The little-endian NumPy type.
    """
    return np.dtype({1: "<u1", 2: "<u2", 4: "<i4"}[token_bytes])


def serialize_record(tokens: bytes, document_starts: bytes) -> bytes:
    """Returns the payload of a record.

    Args:
        tokens: bytes. The tokens as they are stored.
        document_starts: bytes. A bit for every token.

    Returns:
        The serialized `tf.train.Example`.
    """
    import tensorflow as tf

    values = {TOKENS_FEATURE: tokens, DOCUMENT_STARTS_FEATURE: document_starts}
    feature = {
        name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        for name, value in values.items()
    }
    features = tf.train.Features(feature=feature)
    return tf.train.Example(features=features).SerializeToString(deterministic=True)


def pack_document_starts(num_tokens: int, starts: Sequence[int]) -> bytes:
    """Returns the bits of a record.

    Args:
        num_tokens: int. Tokens in the record.
        starts: ints. The tokens, counted from the record's first, that begin
            a document.

    Returns:
        A bit for every token, filled up to whole bytes.
    """
    bits = np.zeros(num_tokens, np.uint8)
    bits[list(starts)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def frame_bytes(num_tokens: int, token_bytes: int) -> int:
    """Returns the bytes that a record takes up in its file.

    Args:
        num_tokens: int. Tokens in the record.
        token_bytes: int. Width of a token in bytes.

    Returns:
        The size of the frame in bytes.
    """
    # From the numbers alone: a manifest's may be absurd, and must not take memory.
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
    """Returns the tokens of one frame, and where documents begin.

    Args:
        frame: bytes. The frame, whole.
        num_tokens: int. Tokens that the record must hold.
        token_bytes: int. Width of a token in bytes.
        where: str. File and record, for errors.

    Returns:
        Vector of `num_tokens` tokens of the stored type, and bool vector of
        the same length.

    Raises:
        DataDamagedError: If the frame is not such a record.
    """
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    expected = frame_bytes(num_tokens, token_bytes)
    stated = int.from_bytes(frame[:LENGTH_BYTES], "little") + HEADER_BYTES + FOOTER_BYTES
    if len(frame) != expected or stated != expected:
        what = f"A record takes {expected} bytes, but {len(frame)} are there and it says {stated}."
        raise DataDamagedError(what, where=where, remedy=_REMEDY)
    try:
        example = tf.train.Example.FromString(frame[HEADER_BYTES:-FOOTER_BYTES])
    except DecodeError as error:
        what = "A record cannot be decoded."
        raise DataDamagedError(what, where=where, remedy=_REMEDY) from error
    tokens = _only_value(example, TOKENS_FEATURE)
    bits = _only_value(example, DOCUMENT_STARTS_FEATURE)
    if len(tokens) != num_tokens * token_bytes or len(bits) != -(-num_tokens // 8):
        what = f"A record does not hold its {num_tokens} tokens."
        raise DataDamagedError(what, where=where, remedy=_REMEDY)
    starts = np.unpackbits(np.frombuffer(bits, np.uint8), count=num_tokens, bitorder="little")
    return np.frombuffer(tokens, dtype=token_dtype(token_bytes)), starts.astype(bool)


def _field_bytes(num_bytes: int) -> int:
    """Size of a protocol buffer's field: its tag, its length in groups of 7 bits, its content."""
    return 1 + max(1, -(-num_bytes.bit_length() // 7)) + num_bytes


def _only_value(example: Any, feature: str) -> bytes:
    values = example.features.feature[feature].bytes_list.value
    return values[0] if len(values) == 1 else b""
