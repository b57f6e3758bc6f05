"""Records of JSON Lines, TSV and CSV files, each with the line it begins in.

| ending | form |
|---|---|
| `.jsonl`, `.json` | an object in each line, as `parse_json` accepts it |
| `.tsv` | a header line, then a record in each line; nothing is quoted |
| `.csv` | a header line; `csv` in strict mode, so that quoted fields may have line ends |

Files may be compressed with gzip, xz or zstd: `.gz`, `.xz` and `.zst` may follow the ending. Text
is UTF-8; a byte order mark at the beginning is dropped. Empty lines are skipped. Nothing else is
dropped or changed.
"""

import contextlib
import csv
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from txl_tf.config.base import shown_value
from txl_tf.data.text_files import MAX_LINE_BYTES, numbered_lines
from txl_tf.errors import (
    DataDamagedError,
    InputMissingError,
    MismatchError,
    UsageError,
    did_you_mean,
)
from txl_tf.storage.files import first_line
from txl_tf.storage.untrusted_files import parse_json_object, read_file, storage_errors

CORRECT = "Correct the file, or take the record out."
_MAX_FILE_BYTES = 4 << 30
_FORMS = (".jsonl", ".json", ".tsv", ".csv")
_COMPRESSED = (".gz", ".xz", ".zst")
_MAX_SHOWN = 12
_LARGEST_FLOAT32 = 3.4028234663852886e38


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
    form = _form(path)
    rows: Iterator[tuple[str, dict[str, Any]]]
    if form in (".jsonl", ".json"):
        rows = (
            (where, parse_json_object(line, where=where, remedy="Write one object in each line."))
            for where, line in _lines(path)
            if line.strip()
        )
    else:
        fields = _comma_fields(path) if form == ".csv" else _tab_fields(path)
        rows = _with_header(fields, header, max_broken_lines)
    number = 0
    for where, values in rows:
        chosen = {name: values[name] for name in (*columns, *optional) if name in values}
        if missing := [name for name in columns if name not in chosen]:
            # In the first record the column name is wrong; a later one is damaged.
            raise (DataDamagedError if number else MismatchError)(
                f"There is no column {missing[0]!r}.{near_name(missing[0], list(values))}",
                where=where,
                remedy=f"The columns are: {shown_names(list(values))}",
            )
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
    if not is_number or not abs(value) <= _LARGEST_FLOAT32:
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


def _form(path: str) -> str:
    name = next((path.removesuffix(end) for end in _COMPRESSED if path.endswith(end)), path)
    form = next((end for end in _FORMS if name.endswith(end)), None)
    if form is None:
        raise UsageError(
            "The ending of a file says its form.",
            where=path,
            remedy=f"Name a file with one of these endings: {', '.join(_FORMS)}",
        )
    return form


def _lines(path: str) -> Iterator[tuple[str, str]]:
    """Yields the place and the text of each line, with its end."""
    for number, offset, line in numbered_lines(path):
        where = f"{path}, line {number}"
        if offset > _MAX_FILE_BYTES:
            what = f"The file has more than {_MAX_FILE_BYTES:,} bytes; examples are held in memory."
            raise DataDamagedError(what, where=path, remedy="Give a part of it.")
        try:
            yield where, line.decode("utf-8")
        except UnicodeDecodeError as error:
            what = f"The line is not UTF-8, from its byte {error.start} on."
            remedy = "Convert the file to UTF-8."
            raise DataDamagedError(what, where=where, remedy=remedy) from error


def _tab_fields(path: str) -> Iterator[tuple[str, list[str]]]:
    for where, line in _lines(path):
        yield where, line.removesuffix("\n").removesuffix("\r").split("\t")


def _comma_fields(path: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the place of the first line and the fields of each record."""
    where = ""

    def texts() -> Iterator[str]:
        nonlocal where
        for place, text in _lines(path):
            where = where or place
            yield text

    # The default is shorter than some articles.
    csv.field_size_limit(MAX_LINE_BYTES)
    reader = csv.reader(texts(), strict=True)
    while True:
        where = ""
        try:
            fields = next(reader, None)
        except csv.Error as error:
            what = f"The record is not CSV: {first_line(error)}."
            raise DataDamagedError(what, where=where, remedy=CORRECT) from error
        if fields is None:
            return
        yield where, fields


def _with_header(
    rows: Iterator[tuple[str, list[str]]], header: Sequence[str] | None, max_broken_lines: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    num_broken = 0
    for where, fields in rows:
        if fields in ([], [""]):
            continue
        if header is None:
            header = fields
            if doubled := next((name for name in fields if fields.count(name) > 1), None):
                what = f"The column {shown_value(doubled)} stands twice in the header."
                raise DataDamagedError(what, where=where, remedy="Give each column its own name.")
        elif len(fields) < len(header) and num_broken < max_broken_lines:
            num_broken += 1
        elif len(fields) != len(header):
            what = f"The record has {len(fields)} fields; {len(header)} are expected."
            raise DataDamagedError(what, where=where, remedy=CORRECT)
        else:
            yield where, dict(zip(header, fields, strict=True))
