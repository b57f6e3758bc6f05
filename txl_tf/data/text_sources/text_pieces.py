"""Cuts a stream of bytes into pieces that a tokenizer can take one by one."""

from collections.abc import Iterable, Iterator

PIECE_BYTES = 1 << 20


def text_pieces(blocks: Iterable[bytes], piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """Cuts a stream of bytes at line ends.

    A piece ends after the last line feed of its second half. In a line that is
    longer than half a piece it ends after a space, or else between two UTF-8
    characters, so that a line shorter than that is never cut. Where the cuts
    are depends on the bytes alone, not on the blocks they arrive in.

    Args:
        blocks: iterable of bytes. The stream, in blocks of any size.
        piece_bytes: int. Largest size of a piece. Defaults to one mebibyte.

    Yields:
        Pieces, none of them empty, which together are the stream.

    Raises:
        ValueError: If `piece_bytes` is too small to hold a character.
    """
    if piece_bytes < 8:
        raise ValueError(f"`piece_bytes` must be at least 8. Received: {piece_bytes}")
    rest = bytearray()
    for block in blocks:
        rest += block
        start = 0
        while len(rest) - start >= piece_bytes:
            window = bytes(rest[start : start + piece_bytes])
            end = _last_boundary(window, piece_bytes // 2)
            yield window[:end]
            start += end
        del rest[:start]
    if rest:
        yield bytes(rest)


def _last_boundary(window: bytes, start: int) -> int:
    for separator in (b"\n", b" "):
        index = window.rfind(separator, start)
        if index >= 0:
            return index + 1
    # At most three bytes continue a character; more are not UTF-8 anyway.
    for end in range(len(window) - 1, len(window) - 5, -1):
        if window[end] & 0xC0 != 0x80:
            return end
    return len(window)
