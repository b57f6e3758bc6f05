"""Read settings of TensorFlow's client for object stores.

The client has no block size per file. It reads ahead as far as a setting of the
process says, 64 MiB by default, unless more than that is asked for at once. Rows
of a training run begin everywhere in a data set and need little of each place at
first, so reading ahead is made short here, and what reads whole files asks for
large blocks. This module does not import TensorFlow, which reads the settings
when it is loaded.
"""

import os
from collections.abc import Iterator

READ_SETTINGS = {
    # Three reads of the segment reader and some bytes: with records of 4096 tokens, at least one
    # whole record behind the place at which a row begins.
    "GCS_READAHEAD_BUFFER_SIZE_BYTES": str(49 << 10),
    # The build for TPUs caches aligned blocks of that size, and would read a large file through
    # as many requests as it has blocks.
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
    """Whether an error is the client's, of a request that failed, whatever its class is.

    Some readers of TensorFlow make a plain `RuntimeError` or `ValueError` of it.
    """
    return any(text in str(error) for text in _FAILURES)


def read_blocks(path: str, num_bytes: int, block_bytes: int) -> Iterator[bytes]:
    """Reads a file of a store in order, with large requests.

    TensorFlow's own file object would ask for half a megabyte at a time.

    Args:
        path: str. The file.
        num_bytes: int. Its size.
        block_bytes: int. Size of the blocks but the last.

    Raises:
        tf.errors.OpError: If it cannot be read, or has another size.
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
    # The thread that tunes may sleep for a minute after the last part.
    options.autotune.enabled = False
    count = -(-num_bytes // _REQUEST_BYTES)
    size = num_bytes // max(count, 1)
    # Equal parts, so that what remains is some bytes: what comes after the last part of a data
    # set is read more than once.
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
