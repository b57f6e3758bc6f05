"""Writes a token stream into shards of records."""

import bisect
import os
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from txl_tf.data.record_format import (
    SHARD_BYTES,
    TOKENS_PER_RECORD,
    frame_bytes,
    pack_document_starts,
    serialize_record,
    token_dtype,
)
from txl_tf.data.shard_manifest import ShardManifest
from txl_tf.data.split_manifest import shard_file_name
from txl_tf.file_storage import file_sha256

if TYPE_CHECKING:
    import tensorflow as tf


class RecordWriter:
    """Writes the token stream of one split into TFRecord shards, in order.

    Every record holds `tokens_per_record` tokens, except the last one of the
    stream. Memory is constant: at most one record and one piece are held.

    Args:
        folder: str. An existing folder.
        split: str. Name of the split; the shards are named after it.
        token_bytes: int. Width of a stored token: 1, 2 or 4 bytes.
        tokens_per_record: int. Defaults to `4096`.
        shard_bytes: int. Size at which a shard ends, in bytes; a shard has at
            least one record. Defaults to `16_000_000`.

    Example:
    ```python
    with RecordWriter(folder, "train", token_bytes=1) as writer:
        writer.write(token_ids, document_starts=[0])
        shards = writer.finish()
    ```
    """

    def __init__(
        self,
        folder: str,
        split: str,
        *,
        token_bytes: int,
        tokens_per_record: int = TOKENS_PER_RECORD,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        if token_bytes not in (1, 2, 4):
            raise ValueError(f"`token_bytes` must be 1, 2 or 4. Received: {token_bytes}")
        if tokens_per_record <= 0:
            raise ValueError(f"`tokens_per_record` must be positive. Received: {tokens_per_record}")
        if shard_bytes <= 0:
            raise ValueError(f"`shard_bytes` must be positive. Received: {shard_bytes}")
        self._folder = folder
        self._split = split
        self._token_bytes = token_bytes
        self._dtype = token_dtype(token_bytes)
        self._tokens_per_record = tokens_per_record
        self._frame_bytes = frame_bytes(tokens_per_record, token_bytes)
        self._records_per_shard = max(1, shard_bytes // self._frame_bytes)
        self._pending = bytearray()
        # Places in the pending tokens; one past them where an empty document began.
        self._pending_starts: list[int] = []
        self._writer: tf.io.TFRecordWriter | None = None
        self._shard_tokens: list[int] = []
        self._shard_records = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    def write(self, token_ids: np.ndarray, document_starts: Sequence[int] = ()) -> None:
        """Appends tokens to the stream.

        Args:
            token_ids: int vector. Values must fit the width of a stored token.
            document_starts: ints. The places in `token_ids` where a document
                begins, in order. One past the last token is the next token
                that is written.

        Raises:
            ValueError: If a value does not fit.
        """
        if token_ids.dtype != self._dtype:
            limits = np.iinfo(self._dtype)
            if token_ids.size and (token_ids.min() < 0 or token_ids.max() > limits.max):
                raise ValueError(
                    f"`token_ids` must be in [0, {limits.max}]. "
                    f"Received: ids from {token_ids.min()} to {token_ids.max()}"
                )
            token_ids = token_ids.astype(self._dtype)
        num_pending = len(self._pending) // self._token_bytes
        self._pending_starts += [num_pending + start for start in document_starts]
        self._pending += np.ascontiguousarray(token_ids).data
        record_bytes = self._tokens_per_record * self._token_bytes
        whole = len(self._pending) // record_bytes * record_bytes
        if whole == 0:
            return
        for start in range(0, whole, record_bytes):
            self._write_record(bytes(self._pending[start : start + record_bytes]))
        del self._pending[:whole]

    def _take_starts(self, num_tokens: int) -> bytes:
        """The bits of the record that the first pending tokens become."""
        count = bisect.bisect_left(self._pending_starts, num_tokens)
        bits = pack_document_starts(num_tokens, self._pending_starts[:count])
        self._pending_starts = [start - num_tokens for start in self._pending_starts[count:]]
        return bits

    def finish(self) -> tuple[ShardManifest, ...]:
        """Ends the stream, and gives the shards their names.

        Returns:
            The shards in order; none if no token was written.
        """
        if self._pending:
            self._write_record(bytes(self._pending))
            self._pending.clear()
        self._close_shard()
        num_shards = len(self._shard_tokens)
        return tuple(self._name_shard(index, num_shards) for index in range(num_shards))

    def _write_record(self, tokens: bytes) -> None:
        import tensorflow as tf

        if self._writer is None:
            self._writer = tf.io.TFRecordWriter(self._partial_path(len(self._shard_tokens)))
            self._shard_tokens.append(0)
            self._shard_records = 0
        num_tokens = len(tokens) // self._token_bytes
        self._writer.write(serialize_record(tokens, self._take_starts(num_tokens)))
        self._shard_tokens[-1] += num_tokens
        self._shard_records += 1
        if self._shard_records == self._records_per_shard:
            self._close_shard()

    def _close_shard(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    def _partial_path(self, index: int) -> str:
        return os.path.join(self._folder, f"{self._split}-{index:05d}.partial")

    def _name_shard(self, index: int, num_shards: int) -> ShardManifest:
        """The number of shards is part of a name, and known only at the end."""
        import tensorflow as tf

        file = shard_file_name(self._split, index, num_shards)
        path = os.path.join(self._folder, file)
        tf.io.gfile.rename(self._partial_path(index), path)
        tokens = self._shard_tokens[index]
        records, rest = divmod(tokens, self._tokens_per_record)
        size = tf.io.gfile.stat(path).length
        rest_bytes = frame_bytes(rest, self._token_bytes) if rest else 0
        # Readers find a record by multiplication: this equality is what they rely on.
        if size != records * self._frame_bytes + rest_bytes:
            raise OSError(f"{path} has {size} bytes after writing {tokens} tokens")
        return ShardManifest(
            file=file,
            tokens=tokens,
            records=records + bool(rest),
            bytes=size,
            sha256=file_sha256(path),
        )
