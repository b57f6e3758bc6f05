"""Text files: their content in lines and blocks, and their documents.

Text stays the same byte for byte, or is refused with file, line and byte offset. Only a byte order
mark is dropped; offsets count from the first byte after the mark. The byte tokenizer accepts every
input. Tokenizers of characters, words and subwords need UTF-8:

| input | text tokenizers |
|---|---|
| bytes that are not UTF-8 (Latin-1, binary data) | refused |
| surrogates encoded as three bytes, over-long forms | refused |
| NUL | unchanged; refused if over a fifth of the first 4096 bytes (UTF-16, or not text) |
| UTF-8 byte order mark | dropped at the start of a file or document, for all tokenizers |
| CR LF | unchanged; a line is a separator with or without a CR before its LF |
| CR alone, VT, FF, U+0085, U+2028, U+2029 | unchanged; documents and pieces end only at LF |
| combining characters (NFD) | unchanged; nothing is composed |
| words and lines of any length | unchanged; beyond half a mebibyte cut between characters |
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, Literal

from txl_tf.data.sources.archives import archive_errors, archive_files
from txl_tf.data.sources.document_cuts import (
    grouped_documents,
    line_parts,
    line_pattern,
    marked_parts,
)
from txl_tf.data.sources.file_kinds import check_text, decoded_content, kind_of
from txl_tf.data.sources.parquet_files import parquet_values
from txl_tf.data.sources.text_paths import input_missing_error, text_files
from txl_tf.data.text import split_at_lines
from txl_tf.data.tokenizers.tokenizer import (
    InvalidTextError,
    decode_utf8,
    document_bytes,
)
from txl_tf.errors import DataDamagedError, errors_as, storage_errors
from txl_tf.storage.files import open_regular_file


class TextDocuments:
    """Documents of text files, which can be iterated more than once.

    A document is an iterator over its pieces. Documents without text are dropped: empty files,
    empty lines, several separators in a row. A document ends with its file, or with its file in a
    zip or tar archive.

    The unit of a document is the first of these that is set: `parquet_column`, `json_field`,
    `separator`, `one_per`.

    Args:
        paths: sequence of str. Files, folders or patterns, see `text_files`.
        one_per: str. `"file"` or `"line"`: a document is a file, or a line with its line end.
            Defaults to `"file"`.
        separator: optional bytes. Line between documents, without its LF; `b""` means an empty
            line. Defaults to `None`.
        json_field: optional str. If set, the files are JSON Lines in UTF-8, and a document is the
            string in this field of a line. Defaults to `None`.
        parquet_column: optional str. If set, the files are Parquet, and a document is the string
            in this column of a row. This needs the package `pyarrow`. Defaults to `None`.
        may_be_json: bool. If `True`, files that look like JSON are read as text. Defaults to
            `False`.
        check_utf8: bool. If `True`, text that is not UTF-8 is refused. Defaults to `False`.

    Raises:
        InputMissingError: If a path has no file.
        UsageError: If a file is named twice, or can be read only once, such as a pipe.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        one_per: Literal["file", "line"] = "file",
        separator: bytes | None = None,
        json_field: str | None = None,
        parquet_column: str | None = None,
        may_be_json: bool = False,
        check_utf8: bool = False,
    ) -> None:
        self.files = text_files(paths)
        self._by_line = one_per == "line"
        self._mark = None if separator is None else line_pattern(separator)
        self._json_field = json_field
        self._column = parquet_column
        self._may_be_json = may_be_json
        self._check_utf8 = check_utf8

    def __iter__(self) -> Iterator[Iterator[bytes]]:
        """Yields documents. The step to the next document skips what was not read."""
        for path in self.files:
            if self._column is not None:
                yield from _column_documents(path, self._column)
            elif self._json_field is not None:
                yield from _json_documents(path, self._json_field)
            else:
                for place, blocks in text_streams(path, may_be_json=self._may_be_json):
                    # The byte tokenizer accepts files of any bytes, but files in archives must be
                    # text.
                    is_checked = self._check_utf8 or place != path
                    pieces = validated_text(blocks, place) if is_checked else split_at_lines(blocks)
                    yield from self._documents(pieces)

    def _documents(self, pieces: Iterator[bytes]) -> Iterator[Iterator[bytes]]:
        if self._mark is not None:
            return grouped_documents(marked_parts(pieces, self._mark, keep_mark=False))
        return grouped_documents(
            line_parts(pieces) if self._by_line else ((0, piece) for piece in pieces)
        )


def _json_documents(path: str, field: str) -> Iterator[Iterator[bytes]]:
    for number, offset, line in numbered_lines(path):
        if text := _text_of_json(line, field, line_place(path, number, offset)):
            yield split_at_lines([text])


def _column_documents(path: str, column: str) -> Iterator[Iterator[bytes]]:
    for text, place in parquet_values(path, column):
        if not isinstance(text, str | None):
            raise DataDamagedError(
                f"The column {column!r} must hold text, not {type(text).__name__}.",
                where=place,
                remedy="Name another column: --field NAME",
            )
        if text:
            yield split_at_lines([text.encode()])


# The JSON of a line, its decoded form and its text are in memory at once.
MAX_LINE_BYTES = 32 << 20


def numbered_lines(path: str) -> Iterator[tuple[int, int, bytes]]:
    """Yields number (from 1), byte offset and content of every line of a file.

    The file may be compressed. Raises DataDamagedError for a line longer than `MAX_LINE_BYTES`.
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
            raise _line_error(
                f"The line must have at most {MAX_LINE_BYTES:,} bytes, but is longer.",
                line_place(path, number, offset),
            )
    if rest:
        yield number, offset, bytes(rest)


def line_place(path: str, number: int, offset: int) -> str:
    """Formats the place of a line for error messages."""
    return f"{path}, line {number}, byte {offset}"


def _text_of_json(line: bytes, field: str, place: str) -> bytes:
    """Returns the text of one line of JSON; an empty text for an empty line.

    Raises DataDamagedError, with `place`, unless the line is an object with a string in the field.
    """
    line = document_bytes(line)  # Files that were joined have byte order marks in the middle.
    text = json_of_line(line, field, place) if line.strip() else ""
    if not isinstance(text, str):
        raise _line_error(
            f"The field {field!r} must be text, not {type(text).__name__}.", place, is_field=True
        )
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        # JSON can escape a lone surrogate, but UTF-8 cannot encode it.
        raise _line_error(
            f"The field {field!r} has a lone surrogate at character {error.start}.", place
        ) from error


def json_of_line(line: bytes, field: str | None, place: str) -> Any:
    """Returns a field of the object in a line of JSON; without `field`, the whole value.

    Raises DataDamagedError, with `place`, if the line is not JSON or does not have the field.
    """
    kinds, what = (ValueError, RecursionError), "The line is not JSON in UTF-8"
    with errors_as(DataDamagedError, kinds, what, place, "Correct the line."):
        value = json.loads(line.decode("utf-8"))
    if field is None:
        return value
    if not isinstance(value, dict):
        raise _line_error(f"The line must be a JSON object with the field {field!r}.", place)
    if field not in value:
        raise _line_error(
            f"The line has no field {field!r}. Its fields: {', '.join(list(value)[:8])}",
            place,
            is_field=True,
        )
    return value[field]


def _line_error(what: str, place: str, *, is_field: bool = False) -> DataDamagedError:
    return DataDamagedError(
        what,
        where=place,
        remedy="Correct the line, or name another field." if is_field else "Correct the line.",
    )


def text_blocks(path: str, *, may_be_json: bool = True) -> Iterator[bytes]:
    """Yields the blocks of a text file, decompressed and without a byte order mark.

    Raises InputMissingError, StorageError, and DataDamagedError for an archive or a container.
    """
    for place, blocks in text_streams(path, may_be_json=may_be_json):
        if place != path:
            raise DataDamagedError(
                "The file is an archive, not text.",
                where=path,
                remedy="Unpack it, as by tar xf or unzip, and name the file.",
            )
        yield from blocks


def text_streams(path: str, *, may_be_json: bool = True) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yields place and blocks of the text in a file, or of each text in a zip or tar archive.

    Blocks can be read only until the next text is asked for. Hidden files in an archive are
    omitted, as in `text_files`. Without `may_be_json`, content that looks like JSON is refused.
    Raises InputMissingError, and, also from the blocks, DataDamagedError and StorageError.
    """
    if not os.path.isfile(path):
        raise input_missing_error("There is no such text file.", path)
    with storage_errors("The text file cannot be read", path), open_regular_file(path) as file:
        start, blocks = decoded_content(file, path)
        check_text(start, path, may_be_json=may_be_json, may_be_archive=True)
        if kind_of(start) is None:
            yield path, _without_mark(blocks)
            return
    with archive_errors(path):
        for name, _, content in archive_files(path):
            if any(part.startswith((".", "__MACOSX")) for part in name.split("/")):
                continue
            if name.endswith(".cls"):
                raise DataDamagedError(
                    "The archive holds samples of WebDataset in several files, not texts.",
                    where=path,
                    remedy=_SAMPLES_REMEDY,
                )
            yield f"{path}, {name}", _member_blocks(content, f"{path}, {name}", may_be_json)


_SAMPLES_REMEDY = "Unpack it (tar xf FILE), and name the texts: --text 'FOLDER/*.txt'"


def _member_blocks(content: IO[bytes], where: str, may_be_json: bool) -> Iterator[bytes]:
    with archive_errors(where):
        start, blocks = decoded_content(content, where)
        check_text(start, where, may_be_json=may_be_json)
        yield from _without_mark(blocks)


def _without_mark(blocks: Iterator[bytes]) -> Iterator[bytes]:
    # `decoded_content` never divides the mark, because its first block has more bytes.
    if start := document_bytes(next(blocks, b"")):
        yield start
    yield from blocks


_EXAMINED_BYTES = 4096
_MAX_NUL_PART = 0.2
_NOT_UTF8_REMEDY = (
    "Convert it to UTF-8, or prepare it with the byte tokenizer, unpacked if it is in an archive."
)


def validated_text(blocks: Iterable[bytes], where: str) -> Iterator[bytes]:
    """Cuts the text of a file as `split_at_lines` does, and checks that it is UTF-8.

    Raises DataDamagedError with `where`, the line (from 1) and the byte (from 0) if it is not.
    """
    num_lines = num_bytes = 0
    for piece in split_at_lines(blocks):
        start = piece[:_EXAMINED_BYTES]
        try:
            decode_utf8(piece)
            if num_bytes == 0 and start.count(0) > _MAX_NUL_PART * len(start):
                raise InvalidTextError(
                    "The text has so many NUL bytes that it must be UTF-16, UTF-32 or no text.",
                    piece,
                    start.index(0),
                )
        except InvalidTextError as error:
            raise error.damaged(
                where, _NOT_UTF8_REMEDY, lines_before=num_lines, bytes_before=num_bytes
            ) from error
        num_lines += piece.count(b"\n")
        num_bytes += len(piece)
        yield piece
