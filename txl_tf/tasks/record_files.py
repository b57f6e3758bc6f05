"""Records of JSON Lines, TSV and CSV files, each with the line it begins in.

| ending | form |
|---|---|
| `.jsonl`, `.json` | an object in each line, as `parse_json` accepts it |
| `.tsv` | a header line, then a record in each line; nothing is quoted |
| `.csv` | a header line; `csv` in strict mode, so that quoted fields may have line ends |

Files may be compressed with gzip, xz or zstd: `.gz`, `.xz` and `.zst` may follow the ending. Text
is UTF-8; a byte order mark at the beginning is dropped. Empty lines are allowed at the end of a
file only. Nothing else is dropped or changed.
"""

import contextlib
import csv
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from txl_tf.config.base import shown_value
from txl_tf.data.documents import MAX_LINE_BYTES, numbered_lines
from txl_tf.errors import (
    DataDamagedError,
    InputMissingError,
    MismatchError,
    UsageError,
    did_you_mean,
)
from txl_tf.storage.files import first_line
from txl_tf.storage.untrusted_files import (
    parse_json,
    parse_json_object,
    read_file,
    storage_errors,
)

CORRECT = "Correct the file, or take the record out."
_MAX_FILE_BYTES = 4 << 30
_COMPRESSED = (".gz", ".xz", ".zst")
_MAX_SHOWN = 12


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """Record of a file: its place for messages, its number from 0, and values by column.

    Values are strings, except in JSON.
    """

    where: str
    number: int
    values: dict[str, Any]

    def text(self, column: str, *, may_be_empty: bool = False) -> str:
        """Returns the text of a column; raises DataDamagedError if it is missing or blank."""
        value = self.values.get(column)
        if value is None and may_be_empty:
            return ""
        if not isinstance(value, str):
            kind = "missing" if value is None else f"no string, but {shown_value(value)}"
            raise self.damaged(f"The field {column!r} is {kind}.")
        if not may_be_empty and not value.strip():
            raise self.damaged(f"The text in the field {column!r} is empty.")
        return value

    def damaged(self, what: str) -> DataDamagedError:
        """Creates an error that names the place of the record."""
        return DataDamagedError(what, where=self.where, remedy=CORRECT)


def read_records(
    path: str,
    columns: Sequence[str],
    optional: Sequence[str] = (),
    *,
    header: Sequence[str] | None = None,
    max_broken_lines: int = 0,
) -> Iterator[Record]:
    """Reads the records of a local file in order, one at a time, with the columns that exist.

    `header` names the columns of a TSV or CSV file without a header line. At most
    `max_broken_lines` TSV lines with too few fields are skipped. Raises MismatchError for a missing
    column, UsageError for an unknown file ending, DataDamagedError for a damaged or empty file.
    """
    read = _FORMS[_ending(path)]
    number = 0
    for where, values in read(path, header, max_broken_lines):
        chosen = {name: values[name] for name in (*columns, *optional) if name in values}
        if missing := [name for name in columns if name not in chosen]:
            raise _no_column(missing[0], list(values), where, is_first=number == 0)
        yield Record(where, number, chosen)
        number += 1
    if number == 0:
        remedy = "Name a file with records."
        raise DataDamagedError("The file has no record.", where=path, remedy=remedy)


def read_json_document(path: str, *, max_bytes: int = 1 << 28) -> dict[str, Any]:
    """Reads a file that is one JSON object of at most `max_bytes`.

    Raises InputMissingError, DataDamagedError if it is no JSON object, or StorageError.
    """
    with storage_errors("The file cannot be read", path):
        try:
            content = read_file(path, max_bytes=max_bytes)
        except (FileNotFoundError, NotADirectoryError) as error:
            what = "There is no such file."
            raise InputMissingError(what, where=path, remedy="Name an existing file.") from error
    return parse_json_object(content, where=path, remedy=CORRECT)


def number_of(record: Record, column: str) -> float:
    """Returns the number in a column, from text or JSON.

    Raises DataDamagedError if it is not a finite number in the range of float32.
    """
    value = record.values[column]
    if isinstance(value, str) and "_" not in value:
        with contextlib.suppress(ValueError):
            value = float(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Also refuses NaN.
    if not is_number or not abs(value) <= _LARGEST_FLOAT:
        raise record.damaged(
            f"The field {column!r} must be a finite number. Received: {shown_value(value)}"
        )
    return float(value)


def near_name(name: str, known: Sequence[str]) -> str:
    """Returns `did_you_mean` of the printable names: files may contain any."""
    return did_you_mean(name, [each for each in known if each.isprintable()])


def shown_names(names: Sequence[str]) -> str:
    """Formats the first names of a list for one line of a message."""
    return ", ".join(shown_value(name) for name in names[:_MAX_SHOWN])


# The largest float32.
_LARGEST_FLOAT = 3.4028234663852886e38

_Rows = Iterator[tuple[str, dict[str, Any]]]


def _ending(path: str) -> str:
    name = next((path.removesuffix(end) for end in _COMPRESSED if path.endswith(end)), path)
    ending = next((end for end in _FORMS if name.endswith(end)), None)
    if ending is None:
        raise UsageError(
            "The ending of a file says its form.",
            where=path,
            remedy=f"Name a file with one of these endings: {', '.join(_FORMS)}",
        )
    return ending


def _json_rows(path: str, header: Sequence[str] | None, max_broken_lines: int) -> _Rows:
    del header, max_broken_lines
    for number, line in _filled(path, _lines_without_ends(path)):
        where = _place(path, number)
        try:
            values = parse_json(line)
        except ValueError as error:
            what = f"The line is not JSON: {first_line(error)}"
            raise DataDamagedError(what, where=where, remedy=CORRECT) from error
        if not isinstance(values, dict):
            what = f"The line is not a JSON object, but {shown_value(values)}."
            raise DataDamagedError(what, where=where, remedy="Write one object in each line.")
        yield where, values


def _tab_rows(path: str, header: Sequence[str] | None, max_broken_lines: int) -> _Rows:
    lines = _filled(path, _lines_without_ends(path))
    rows = ((number, line.split("\t")) for number, line in lines)
    return _with_header(path, rows, header, max_broken_lines)


def _comma_rows(path: str, header: Sequence[str] | None, max_broken_lines: int) -> _Rows:
    return _with_header(path, _filled(path, _comma_fields(path)), header, max_broken_lines)


_FORMS: dict[str, Callable[[str, Sequence[str] | None, int], _Rows]] = {
    ".jsonl": _json_rows,
    ".json": _json_rows,
    ".tsv": _tab_rows,
    ".csv": _comma_rows,
}


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """Yields number and text of each line."""
    for number, offset, line in numbered_lines(path):
        if offset > _MAX_FILE_BYTES:
            what = f"The file has more than {_MAX_FILE_BYTES:,} bytes; examples are held in memory."
            raise DataDamagedError(what, where=path, remedy="Give a part of it.")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            what = f"The line is not UTF-8, from its byte {error.start} on."
            remedy = "Convert the file to UTF-8."
            raise DataDamagedError(what, where=_place(path, number), remedy=remedy) from error
        yield number, text


def _lines_without_ends(path: str) -> Iterator[tuple[int, str]]:
    return ((number, text.removesuffix("\n").removesuffix("\r")) for number, text in _lines(path))


def _comma_fields(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the first line and the fields of each record; no fields for an empty line."""
    reader = csv.reader((text for _, text in _lines(path)), strict=True)
    while True:
        first = reader.line_num + 1
        # The limit is global to the process; the default is shorter than some articles.
        limit = csv.field_size_limit(MAX_LINE_BYTES)
        try:
            fields = next(reader, None)
        except csv.Error as error:
            what = f"The record is not CSV: {first_line(error)}."
            raise DataDamagedError(what, where=_place(path, first), remedy=CORRECT) from error
        finally:
            csv.field_size_limit(limit)
        if fields is None:
            return
        yield first, fields


def _filled(path: str, rows: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Passes on records that are not empty; raises an error for a record after an empty line."""
    empty = None
    for number, content in rows:
        if not content or content == [""]:
            empty = empty or number
            continue
        if empty is not None:
            raise DataDamagedError("The line is empty.", where=_place(path, empty), remedy=CORRECT)
        yield number, content


def _with_header(
    path: str,
    rows: Iterator[tuple[int, list[str]]],
    header: Sequence[str] | None,
    max_broken_lines: int,
) -> _Rows:
    num_broken = 0
    for number, fields in rows:
        where = _place(path, number)
        if header is None:
            header = fields
            if doubled := next((name for name in fields if fields.count(name) > 1), None):
                what = f"The column {shown_value(doubled)} stands twice in the header."
                raise DataDamagedError(what, where=where, remedy="Give each column its own name.")
            continue
        if len(fields) < len(header) and num_broken < max_broken_lines:
            num_broken += 1
            continue
        if len(fields) != len(header):
            what = f"The record has {len(fields)} fields; {len(header)} are expected."
            raise DataDamagedError(what, where=where, remedy=CORRECT)
        yield where, dict(zip(header, fields, strict=True))


def _no_column(column: str, known: list[str], where: str, *, is_first: bool) -> Exception:
    what = f"There is no column {column!r}.{near_name(column, known)}"
    remedy = f"The columns are: {shown_names(known)}"
    # A later record without the column is damaged; in the first one the column name is wrong.
    return (MismatchError if is_first else DataDamagedError)(what, where=where, remedy=remedy)


def _place(path: str, number: int) -> str:
    return f"{path}, line {number}"
