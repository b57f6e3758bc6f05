"""Document sources: one document per file, per line, between separators, or JSON Lines."""

import io
import itertools
import json
import operator
import re
from collections.abc import Iterable, Iterator, Sequence

from txl_tf.data.text import document_bytes, split_at_lines
from txl_tf.data.text_files import text_blocks, text_files, validated_text
from txl_tf.errors import DataDamagedError


def marked_documents(
    pieces: Iterable[bytes], mark: re.Pattern[bytes], *, keep_mark: bool
) -> Iterator[Iterator[bytes]]:
    """Cuts a stream of pieces of whole lines into documents at the lines that match `mark`.

    Text before the first mark is a document; empty documents are dropped. Read each document
    before asking for the next: the unread rest is skipped. `keep_mark` keeps the line as the first
    of its document.
    """
    return grouped_documents(_numbered(pieces, mark, keep_mark))


def line_pattern(line: bytes) -> re.Pattern[bytes]:
    """Returns the pattern of a line that is exactly these bytes, ended by LF, CR LF or the text.

    Raises ValueError if the line is too long or holds a line feed.
    """
    if b"\n" in line or len(line) > 1024:
        raise ValueError(
            f"A separator must be one line of at most 1024 bytes. Received: {line[:80]!r}"
        )
    # Without the look-ahead, an empty line would be found after the last line feed.
    return re.compile(rb"(?m)^(?=[\s\S])" + re.escape(line) + rb"(?:\r?\n|\r?\Z)")


def grouped_documents(chunks: Iterable[tuple[int, bytes]]) -> Iterator[Iterator[bytes]]:
    """Groups consecutive chunks with the same document number into one iterator per document."""
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
            # A piece may begin within a long line.
            if match.start() == 0 and not at_line_start:
                continue
            if match.start() > start:
                yield number, piece[start : match.start()]
            number += 1
            start = match.start() if keep_mark else match.end()
        if start < len(piece):
            yield number, piece[start:]
        at_line_start = piece.endswith(b"\n")


class FileDocuments:
    """Documents of text files: one per file; empty files are dropped.

    Args:
        paths: sequence of str. Files, folders or patterns; see `text_files`.
        check_utf8: bool. If `True`, refuses text that is not UTF-8. Defaults to `False`.

    Raises:
        InputMissingError: If a path has no file.
    """

    def __init__(self, paths: Sequence[str], *, check_utf8: bool = False) -> None:
        self.files = text_files(paths)
        self._check_utf8 = check_utf8

    def __iter__(self) -> Iterator[Iterator[bytes]]:
        """Yields documents, each an iterator over pieces of about a mebibyte."""
        for pieces in self._pieces():
            first = next(pieces, None)
            if first is not None:
                yield itertools.chain([first], pieces)

    def _pieces(self) -> Iterator[Iterator[bytes]]:
        """Yields the pieces of every file."""
        for path in self.files:
            yield split_at_lines(checked_blocks(path, check_utf8=self._check_utf8))


def checked_blocks(path: str, *, check_utf8: bool) -> Iterator[bytes]:
    """Reads a text file, compressed or not; with `check_utf8`, refuses text that is not UTF-8."""
    blocks = text_blocks(path)
    return validated_text(blocks, path) if check_utf8 else blocks


# The parser holds the line, its decoded form and its text at once.
MAX_LINE_BYTES = 32 << 20


class JsonLinesDocuments:
    """Documents of JSON Lines files; empty texts and empty lines are dropped.

    JSON must be UTF-8, so the texts are UTF-8 too.

    Args:
        paths: sequence of str. Files, folders or patterns; see `text_files`.
        field: str. The field that holds the text. Defaults to `"text"`.

    Raises:
        InputMissingError: If a path has no file.
    """

    def __init__(self, paths: Sequence[str], field: str = "text") -> None:
        self.files = text_files(paths)
        self._field = field

    def __iter__(self) -> Iterator[Iterator[bytes]]:
        """Yields documents, each an iterator over pieces."""
        for path in self.files:
            for number, offset, line in numbered_lines(path):
                text = text_of_json(line, self._field, line_place(path, number, offset))
                if text:
                    yield split_at_lines([text])


def numbered_lines(path: str) -> Iterator[tuple[int, int, bytes]]:
    """Yields number (from 1), byte offset and content of every line of a file, compressed or not.

    Raises DataDamagedError if a line is longer than `MAX_LINE_BYTES`.
    """
    rest = bytearray()
    number, offset = 1, 0
    for block in text_blocks(path):
        rest += block
        start = 0
        while (end := rest.find(b"\n", start) + 1) > 0:
            yield number, offset, bytes(rest[start:end])
            number += 1
            offset += end - start
            start = end
        del rest[:start]
        if len(rest) > MAX_LINE_BYTES:
            what = f"The line is longer than {MAX_LINE_BYTES} bytes."
            raise _unusable(what, line_place(path, number, offset))
    if rest:
        yield number, offset, bytes(rest)


def text_of_json(line: bytes, field: str, place: str) -> bytes:
    """Returns the text of one line of JSON; empty for an empty line.

    Raises DataDamagedError, with `place`, unless it is an object with a string in the field.
    """
    # Concatenated files have byte order marks in the middle.
    line = document_bytes(line)
    if not line.strip():
        return b""
    try:
        values = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _unusable(f"The line is not UTF-8, from its byte {error.start} on.", place) from error
    except (ValueError, RecursionError) as error:
        raise _unusable(f"The line is not JSON: {error}", place) from error
    if not isinstance(values, dict):
        raise _unusable("The line is not a JSON object.", place)
    if field not in values:
        known = ", ".join(list(values)[:8])
        raise _unusable(f"The line has no field {field!r}, but: {known}", place)
    if not isinstance(values[field], str):
        kind = type(values[field]).__name__
        raise _unusable(f"The field {field!r} must be a string, not {kind}.", place)
    try:
        return values[field].encode("utf-8")
    except UnicodeEncodeError as error:
        # JSON can escape a lone surrogate; UTF-8 cannot encode one.
        what = f"The field {field!r} has a lone surrogate at character {error.start}."
        raise _unusable(what, place) from error


def line_place(path: str, number: int, offset: int) -> str:
    """Formats the place of a line for errors."""
    return f"{path}, line {number}, byte {offset}"


def _unusable(what: str, place: str) -> DataDamagedError:
    return DataDamagedError(what, where=place, remedy="Correct the line, or name another field.")


class LineDocuments(FileDocuments):
    """Documents of text files: one per line, with its line end.

    Empty lines are dropped.

    See `FileDocuments` for the arguments.
    """

    def __iter__(self) -> Iterator[Iterator[bytes]]:
        """Yields documents; a line longer than a piece has several pieces."""
        for pieces in self._pieces():
            yield from grouped_documents(_numbered_lines(pieces))


def _numbered_lines(pieces: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    number = 0
    for piece in pieces:
        for line in io.BytesIO(piece):  # ends lines at LF only
            if line not in (b"\n", b"\r\n"):
                yield number, line
            number += line.endswith(b"\n")


class SeparatedDocuments(FileDocuments):
    """Documents of text files with a separator line between them.

    The separator belongs to no document. Several separators in a row count as one. Each file begins
    a new document.

    Args:
        paths: sequence of str. Files, folders or patterns; see `text_files`.
        separator: bytes. The separator line without its end; empty to split at empty lines.
        check_utf8: bool. If `True`, refuses text that is not UTF-8. Defaults to `False`.

    Raises:
        InputMissingError: If a path has no file.
        ValueError: If the separator is not one line.
    """

    def __init__(self, paths: Sequence[str], separator: bytes, *, check_utf8: bool = False) -> None:
        self._mark = line_pattern(separator)
        super().__init__(paths, check_utf8=check_utf8)

    def has_separator(self) -> bool:
        """Reads the files up to the first separator; False if there is none."""
        return any(self._mark.search(piece) for pieces in self._pieces() for piece in pieces)

    def __iter__(self) -> Iterator[Iterator[bytes]]:
        """Yields documents, each an iterator over pieces of at most a mebibyte."""
        for pieces in self._pieces():
            yield from marked_documents(pieces, self._mark, keep_mark=False)
