"""Read settings of TensorFlow's client for object stores.

The client has no block size per file. It reads ahead by a setting of the process, 64 MiB by
default, unless a larger block is requested. Rows of a training run begin everywhere in a data set
and need little of each place at first. So the read-ahead is short here, and code that reads whole
files requests large blocks. This module does not import TensorFlow, which reads the settings when
it is loaded.
"""

import os
from collections.abc import Iterator

READ_SETTINGS = {
    # Three reads of the segment reader and some bytes: with records of 4096 tokens, at least one
    # whole record after the beginning of a row.
    "GCS_READAHEAD_BUFFER_SIZE_BYTES": str(49 << 10),
    # The build for TPUs caches aligned blocks of the read-ahead size, and would read a large file
    # with one request per block.
    "GCS_READ_CACHE_MAX_SIZE_MB": "0",
}
"""Environment variables of the client and their values."""
_REQUEST_BYTES = 8 << 20
_FAILURES = ("retry attempts failed", "Error executing an HTTP request")


def set_read_ahead() -> None:
    """Sets how this process and its children read; call it before TensorFlow is loaded.

    Values that are set already are kept.
    """
    for name, value in READ_SETTINGS.items():
        os.environ.setdefault(name, value)


def is_store_failure(error: BaseException) -> bool:
    """True if an error is a failed request of the client, whatever its class.

    Some readers of TensorFlow turn it into a plain `RuntimeError` or `ValueError`.
    """
    return any(text in str(error) for text in _FAILURES)


def read_blocks(path: str, num_bytes: int, block_bytes: int) -> Iterator[bytes]:
    """Yields the blocks of a store's file in order, with large requests.

    TensorFlow's own file object would request half a megabyte at a time. Raises
    `tf.errors.OpError` if the file cannot be read or has another size than `num_bytes`.
    """
    pending = b""
    for part in _read_parts(path, num_bytes):
        pending += part
        while len(pending) >= block_bytes:
            yield pending[:block_bytes]
            pending = pending[block_bytes:]
    if pending:
        yield pending


def _read_parts(path: str, num_bytes: int) -> Iterator[bytes]:
    import tensorflow as tf

    options = tf.data.Options()
    # The autotuning thread may sleep for a minute after the last part.
    options.autotune.enabled = False
    count = -(-num_bytes // _REQUEST_BYTES)
    size = num_bytes // max(count, 1)
    # Equal parts leave a rest of some bytes: bytes after the last part of a data set are read more
    # than once.
    for first, record_bytes in ((0, size), (count * size, num_bytes - count * size)):
        if record_bytes:
            last = count * size if first == 0 else num_bytes
            parts = tf.data.FixedLengthRecordDataset(
                path,
                record_bytes=record_bytes,
                header_bytes=first,
                footer_bytes=num_bytes - last,
                buffer_size=record_bytes,
            )
            yield from parts.with_options(options).as_numpy_iterator()
