"""How tokens lie in a record, and a record in a file.

A file is a TFRecord: frames of an 8-byte little-endian length, a 4-byte check
of it, the payload, and a 4-byte check of the payload. A payload is a
`tf.train.Example` with one bytes feature, `tokens`. Full records have frames of
one size, which makes the place of a record in its file a multiplication.
"""

import functools

import numpy as np

from txl_tf.errors import DataDamagedError

TOKENS_FEATURE = "tokens"
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


def serialize_record(tokens: bytes) -> bytes:
    """Returns the payload of a record.

    Args:
        tokens: bytes. The tokens as they are stored.

    Returns:
        The serialized `tf.train.Example`.
    """
    import tensorflow as tf

    feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[tokens]))
    features = tf.train.Features(feature={TOKENS_FEATURE: feature})
    return tf.train.Example(features=features).SerializeToString(deterministic=True)


@functools.lru_cache(maxsize=256)
def frame_bytes(num_tokens: int, token_bytes: int) -> int:
    """Returns the bytes that a record takes up in its file.

    Args:
        num_tokens: int. Tokens in the record.
        token_bytes: int. Width of a token in bytes.

    Returns:
        The size of the frame in bytes.
    """
    payload = serialize_record(bytes(num_tokens * token_bytes))
    return HEADER_BYTES + len(payload) + FOOTER_BYTES


def parse_frame(frame: bytes, num_tokens: int, token_bytes: int, *, where: str) -> np.ndarray:
    """Returns the tokens of one frame.

    Args:
        frame: bytes. The frame, whole.
        num_tokens: int. Tokens that the record must hold.
        token_bytes: int. Width of a token in bytes.
        where: str. File and record, for errors.

    Returns:
        Vector of `num_tokens` tokens of the stored type.

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
    values = example.features.feature[TOKENS_FEATURE].bytes_list.value
    if len(values) != 1 or len(values[0]) != num_tokens * token_bytes:
        what = f"A record does not hold its {num_tokens} tokens."
        raise DataDamagedError(what, where=where, remedy=_REMEDY)
    return np.frombuffer(values[0], dtype=token_dtype(token_bytes))
