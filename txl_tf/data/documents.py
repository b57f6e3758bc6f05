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
    """Cuts a stream into documents at the lines that match a pattern.

    What comes before the first mark is a document too. Documents without a
    byte are left out. A document must be read before the next one is asked
    for; what has not been read of it is skipped.

    Args:
        pieces: iterable of bytes. As `split_at_lines` gives them.
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
            # A piece that continues a long line does not begin at a line's beginning.
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
    """The documents of text files: one a file; empty files are left out.

    Args:
        paths: sequence of str. Files, folders or patterns; see `text_files`.
        check_utf8: bool. Whether text that is not UTF-8 is refused. Defaults to
            `False`, which takes any bytes.

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
    """Reads a text file, compressed or not, and on request refuses text that is not UTF-8."""
    blocks = text_blocks(path)
    return validated_text(blocks, path) if check_utf8 else blocks


# The parser needs the line, its decoded form and its text at the same time.
MAX_LINE_BYTES = 32 << 20


class JsonLinesDocuments:
    """The documents of JSON Lines files; empty texts and empty lines are left out.

    JSON is UTF-8, so its texts always are.

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
        """Yields documents, each an iterator over pieces.

        Raises:
            DataDamagedError: If a line is not an object with a string in the
                field, or longer than `MAX_LINE_BYTES`. The error names the
                file, the line and the byte at which the line begins.
        """
        for path in self.files:
            for number, offset, line in numbered_lines(path):
                text = text_of_json(line, self._field, line_place(path, number, offset))
                if text:
                    yield split_at_lines([text])


def numbered_lines(path: str) -> Iterator[tuple[int, int, bytes]]:
    """Reads a file, compressed or not, line by line.

    Yields:
        Tuples of the number of the line, from 1, of the byte at which it begins, and of
        the line with its end.

    Raises:
        DataDamagedError: If a line is longer than `MAX_LINE_BYTES`.
        JobError: As `text_blocks`.
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

    Args:
        line: bytes. The line.
        field: str. The field that holds the text.
        place: str. Where the line is, for errors.

    Raises:
        DataDamagedError: If it is not an object with a string in the field.
    """
    # Files that were joined have byte order marks within.
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
        # JSON can escape half of a character, and UTF-8 cannot express it.
        what = f"The field {field!r} has a lone surrogate at character {error.start}."
        raise _unusable(what, place) from error


def line_place(path: str, number: int, offset: int) -> str:
    """Returns the place of a line as errors name it."""
    return f"{path}, line {number}, byte {offset}"


def _unusable(what: str, place: str) -> DataDamagedError:
    return DataDamagedError(what, where=place, remedy="Correct the line, or name another field.")


class LineDocuments(FileDocuments):
    """The documents of text files: every line is one, with its line end.

    Lines without anything but their end are left out.

    The arguments are those of `FileDocuments`.
    """

    def __iter__(self) -> Iterator[Iterator[bytes]]:
        """Yields documents; a line longer than a piece comes in several."""
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
    """The documents of text files with a separator line between them.

    The separator belongs to no document, several of them in a row are one, and
    a file begins a document.

    Args:
        paths: sequence of str. Files, folders or patterns; see `text_files`.
        separator: bytes. The line, without its end; empty for empty lines.
        check_utf8: bool. Whether text that is not UTF-8 is refused. Defaults to
            `False`, which takes any bytes.

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
