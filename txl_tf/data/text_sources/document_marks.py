"""Finds where documents begin in a stream of pieces."""

import itertools
import operator
import re
from collections.abc import Iterable, Iterator


def marked_documents(
    pieces: Iterable[bytes], mark: re.Pattern[bytes], *, keep_mark: bool
) -> Iterator[Iterator[bytes]]:
    """Cuts a stream into documents at the lines that match a pattern.

    What comes before the first mark is a document too. Documents without a
    byte are left out. A document must be read before the next one is asked
    for; what has not been read of it is skipped.

    Args:
        pieces: iterable of bytes. As `text_pieces` gives them.
        mark: pattern of a whole line with its end, as `line_pattern` makes it.
        keep_mark: bool. Whether the line that matches begins the document
            after it, or belongs to neither.

    Yields:
        Documents, each an iterator over its pieces.
    """
    return grouped_documents(_numbered(pieces, mark, keep_mark))


def line_pattern(line: bytes) -> re.Pattern[bytes]:
    """Returns the pattern of a line that is exactly these bytes.

    The line may end with LF, with CR LF or with the text.

    Args:
        line: bytes. The line without its end; empty for an empty line.

    Returns:
        The compiled pattern.

    Raises:
        ValueError: If the line is too long or holds a line feed.
    """
    if b"\n" in line or len(line) > 1024:
        raise ValueError(
            f"A separator must be one line of at most 1024 bytes. Received: {line[:80]!r}"
        )
    # Without the look-ahead, an empty line would be found after the last line feed.
    return re.compile(rb"(?m)^(?=[\s\S])" + re.escape(line) + rb"(?:\r?\n|\r?\Z)")


def grouped_documents(chunks: Iterable[tuple[int, bytes]]) -> Iterator[Iterator[bytes]]:
    """Gathers consecutive chunks of the same document.

    Args:
        chunks: iterable of pairs: a number that is the same within a document
            and another in the next, and bytes.

    Yields:
        Documents, each an iterator over its chunks.
    """
    for _, group in itertools.groupby(chunks, key=operator.itemgetter(0)):
        yield (chunk for _, chunk in group)


def _numbered(
    pieces: Iterable[bytes], mark: re.Pattern[bytes], keep_mark: bool
) -> Iterator[tuple[int, bytes]]:
    number = 0
    at_line_start = True
    for piece in pieces:
        start = 0
        for match in mark.finditer(piece):
            # A piece that goes on with a long line does not begin at a line's beginning.
            if match.start() == 0 and not at_line_start:
                continue
            if match.start() > start:
                yield number, piece[start : match.start()]
            number += 1
            start = match.start() if keep_mark else match.end()
        if start < len(piece):
            yield number, piece[start:]
        at_line_start = piece.endswith(b"\n")
