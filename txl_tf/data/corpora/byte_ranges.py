"""Stretches of a stream of bytes."""

from collections.abc import Iterable, Iterator

from txl_tf.errors import DataDamagedError


def byte_range(
    blocks: Iterable[bytes], start_byte: int, stop_byte: int, *, where: str
) -> Iterator[bytes]:
    """Gives the bytes of a stream from one place up to another.

    Args:
        blocks: iterable of bytes. The stream from its beginning.
        start_byte: int. The first byte.
        stop_byte: int. The byte after the last one.
        where: str. What the stream is, for errors.

    Yields:
        The bytes, in blocks.

    Raises:
        DataDamagedError: If the stream is shorter.
    """
    offset = 0
    for block in blocks:
        part = block[max(0, start_byte - offset) : max(0, stop_byte - offset)]
        offset += len(block)
        if part:
            yield part
        if offset >= stop_byte:
            return
    raise DataDamagedError(
        f"The text must have {stop_byte} bytes, but has {offset}.",
        where=where,
        remedy="Get the file again.",
    )
