"""Cuts of a stream of text into documents: at marked lines, or after every line.

A stream consists of pieces of `split_at_lines`, which end at line ends unless a line is long. A
part is the number of a document and a piece of its text. Documents without text have no part.
"""

import io
import itertools
import operator
import re
from collections.abc import Iterable, Iterator


def line_pattern(line: bytes) -> re.Pattern[bytes]:
    """Returns a pattern of a line of exactly these bytes, with LF, CR LF or neither after it."""
    # Without the look-ahead, an empty line would match after the last line feed.
    return re.compile(rb"(?m)^(?=[\s\S])" + re.escape(line) + rb"(?:\r?\n|\r?\Z)")


def marked_parts(
    pieces: Iterable[bytes], mark: re.Pattern[bytes], *, keep_mark: bool
) -> Iterator[tuple[int, bytes]]:
    """Yields the parts of documents that are separated by lines that match `mark`.

    Text before the first such line is a document. With `keep_mark`, the line is the first line of
    the document after it; otherwise it belongs to no document.
    """
    number = 0
    at_line_start = True
    for piece in pieces:
        start = 0
        for match in mark.finditer(piece):
            # A piece of a long line may begin within the line.
            if match.start() == 0 and not at_line_start:
                continue
            if match.start() > start:
                yield number, piece[start : match.start()]
            number += 1
            start = match.start() if keep_mark else match.end()
        if start < len(piece):
            yield number, piece[start:]
        at_line_start = piece.endswith(b"\n")


def line_parts(pieces: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yields the parts of documents if each line is a document; empty lines are dropped."""
    number = 0
    for piece in pieces:
        for line in io.BytesIO(piece):  # ends lines at LF only
            if line not in (b"\n", b"\r\n"):
                yield number, line
            number += line.endswith(b"\n")


def grouped_documents(parts: Iterable[tuple[int, bytes]]) -> Iterator[Iterator[bytes]]:
    """Yields one iterator over the text for each document; `parts` are in order."""
    for _, group in itertools.groupby(parts, key=operator.itemgetter(0)):
        yield (part for _, part in group)
