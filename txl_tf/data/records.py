"""TFRecord format of token streams, and the writer that cuts a stream into shards.

A file is a TFRecord: frames of an 8-byte little-endian length, its 4-byte checksum, the payload,
and the payload's 4-byte checksum. A payload is a `tf.train.Example` with two bytes features:
`tokens`, and `document_starts` with one bit per token, lowest bit first, which is set if a document
begins with the token. Full records have frames of equal size, so the offset of a record in its file
is a multiplication.
"""

import bisect
import dataclasses
import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from txl_tf.config.base import FrozenConfig
from txl_tf.errors import DataDamagedError
from txl_tf.imports import tensorflow as tf
from txl_tf.storage.files import file_sha256

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
    """Returns the little-endian type of stored tokens that are 1, 2 or 4 bytes wide."""
    return np.dtype({1: "<u1", 2: "<u2", 4: "<i4"}[token_bytes])


def serialize_record(tokens: bytes, document_starts: bytes) -> bytes:
    """Returns the payload of a record from its stored tokens and its bit per token."""
    values = {TOKENS_FEATURE: tokens, DOCUMENT_STARTS_FEATURE: document_starts}
    feature = {
        name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        for name, value in values.items()
    }
    features = tf.train.Features(feature=feature)
    return tf.train.Example(features=features).SerializeToString(deterministic=True)


def pack_document_starts(num_tokens: int, starts: Sequence[int]) -> bytes:
    """Packs the sorted places where documents begin into one bit per token, in whole bytes."""
    bits = np.zeros(num_tokens, np.uint8)
    bits[list(starts)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardManifest(FrozenConfig):
    """One shard: a file, in the folder of the data set, of consecutive records of a split."""

    file: str
    tokens: int
    records: int
    bytes: int
    sha256: str


def shard_file_name(split: str, index: int, num_shards: int) -> str:
    """Returns the name of one shard, such as `train-00000-of-00008.tfrecord`."""
    return f"{split}-{index:05d}-of-{num_shards:05d}.tfrecord"


class RecordSizes(NamedTuple):
    """Sizes of the records of a data set; only the last record and shard of a split are smaller.

    A token is 1, 2 or 4 bytes wide, and a shard has at least one record.
    """

    token_bytes: int
    tokens_per_record: int = TOKENS_PER_RECORD
    shard_bytes: int = SHARD_BYTES

    @property
    def tokens_per_shard(self) -> int:
        """Tokens of every shard except the last."""
        frame = frame_bytes(self.tokens_per_record, self.token_bytes)
        return max(1, self.shard_bytes // frame) * self.tokens_per_record


class RecordWriter:
    """Writer of the token stream of one split into TFRecord shards.

    Memory is constant: at most one record and one piece of text. The folder exists, and the shards
    are named after the split.
    """

    def __init__(self, folder: str, split: str, sizes: RecordSizes) -> None:
        if sizes.token_bytes not in (1, 2, 4) or min(sizes) <= 0:
            raise ValueError(
                "`token_bytes` must be 1, 2 or 4, and the other sizes positive. "
                f"Received: sizes={sizes}"
            )
        self._folder = folder
        self._split = split
        self._sizes = sizes
        self._dtype = token_dtype(sizes.token_bytes)
        self._pending = bytearray()
        # Indices into the pending tokens; one past the end after an empty document.
        self._pending_starts: list[int] = []
        self._writer: tf.io.TFRecordWriter | None = None
        self._shard_tokens: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._close_shard()

    def write(self, token_ids: np.ndarray, document_starts: Sequence[int] = ()) -> None:
        """Appends tokens to the stream; ValueError if one does not fit the width of stored tokens.

        `document_starts` are the sorted places where documents begin; `len(token_ids)` stands for
        the next token that is written.
        """
        if token_ids.dtype != self._dtype:
            limits = np.iinfo(self._dtype)
            if token_ids.size and (token_ids.min() < 0 or token_ids.max() > limits.max):
                raise ValueError(
                    f"`token_ids` must be in [0, {limits.max}]. "
                    f"Received: ids from {token_ids.min()} to {token_ids.max()}"
                )
            token_ids = token_ids.astype(self._dtype)
        num_pending = len(self._pending) // self._sizes.token_bytes
        self._pending_starts += [num_pending + start for start in document_starts]
        self._pending += np.ascontiguousarray(token_ids).data
        record_bytes = self._sizes.tokens_per_record * self._sizes.token_bytes
        whole = len(self._pending) // record_bytes * record_bytes
        for start in range(0, whole, record_bytes):
            self._write_record(bytes(self._pending[start : start + record_bytes]))
        del self._pending[:whole]

    def _take_starts(self, num_tokens: int) -> bytes:
        """Removes the document starts of the next `num_tokens` tokens and returns them as bits."""
        count = bisect.bisect_left(self._pending_starts, num_tokens)
        bits = pack_document_starts(num_tokens, self._pending_starts[:count])
        self._pending_starts = [start - num_tokens for start in self._pending_starts[count:]]
        return bits

    def finish(self) -> tuple[ShardManifest, ...]:
        """Ends the stream, renames the shards and returns them; none if no token was written."""
        if self._pending:
            self._write_record(bytes(self._pending))
            self._pending.clear()
        self._close_shard()
        num_shards = len(self._shard_tokens)
        return tuple(self._name_shard(index, num_shards) for index in range(num_shards))

    def _write_record(self, tokens: bytes) -> None:
        if self._writer is None:
            self._writer = tf.io.TFRecordWriter(self._partial_path(len(self._shard_tokens)))
            self._shard_tokens.append(0)
        num_tokens = len(tokens) // self._sizes.token_bytes
        self._writer.write(serialize_record(tokens, self._take_starts(num_tokens)))
        self._shard_tokens[-1] += num_tokens
        if self._shard_tokens[-1] == self._sizes.tokens_per_shard:
            self._close_shard()

    def _close_shard(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    def _partial_path(self, index: int) -> str:
        return os.path.join(self._folder, f"{self._split}-{index:05d}.partial")

    def _name_shard(self, index: int, num_shards: int) -> ShardManifest:
        """Renames a finished shard; the name holds the number of shards."""
        file = shard_file_name(self._split, index, num_shards)
        path = os.path.join(self._folder, file)
        tf.io.gfile.rename(self._partial_path(index), path)
        tokens = self._shard_tokens[index]
        records, rest = divmod(tokens, self._sizes.tokens_per_record)
        expected = records * frame_bytes(self._sizes.tokens_per_record, self._sizes.token_bytes)
        expected += frame_bytes(rest, self._sizes.token_bytes) if rest else 0
        size = tf.io.gfile.stat(path).length
        # Readers compute the offset of a record from this equality.
        if size != expected:
            raise OSError(f"{path} has {size} bytes after writing {tokens} tokens")
        return ShardManifest(
            file=file,
            tokens=tokens,
            records=records + bool(rest),
            bytes=size,
            sha256=file_sha256(path),
        )
