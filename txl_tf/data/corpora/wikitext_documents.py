"""The articles of a WikiText file."""

from collections.abc import Iterable, Iterator

from txl_tf.data.text_sources.document_marks import grouped_documents

_BLANK = b" \n"
_GATHERED_BYTES = 1 << 16


def wikitext_articles(pieces: Iterable[bytes]) -> Iterator[Iterator[bytes]]:
    """Cuts a WikiText file into its articles.

    An article begins with a title such as ` = Robert Boulter = ` on a line by
    itself, between two lines that are blank. Headings within an article have
    more than one `=`. The blank line before the title belongs to the article, so that
    the articles together are the file.

    Args:
        pieces: iterable of bytes. As `text_pieces` gives them.

    Yields:
        Articles, each an iterator over pieces of whole lines. An article must
        be read before the next one is asked for.
    """
    return grouped_documents(_numbered(_lines(pieces)))


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        yield from piece.splitlines(keepends=True) if b"\r" not in piece else _by_newline(piece)


def _by_newline(piece: bytes) -> list[bytes]:
    lines = piece.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _numbered(lines: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    number, size = 0, 0
    # A title is known by the line after it, so two lines are always held back.
    gathered: list[bytes] = []
    before, title = next(lines, b""), next(lines, b"")
    for after in lines:
        if before == after == _BLANK and _is_title(title):
            if gathered:
                yield number, b"".join(gathered)
                gathered, size = [], 0
            number += 1
        gathered.append(before)
        size += len(before)
        if size >= _GATHERED_BYTES:
            yield number, b"".join(gathered)
            gathered, size = [], 0
        before, title = title, after
    if rest := b"".join([*gathered, before, title]):
        yield number, rest


def _is_title(line: bytes) -> bool:
    return line.startswith(b" = ") and line.endswith(b" = \n") and not line.startswith(b" = = ")
