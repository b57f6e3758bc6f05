"""Records of values by column, from a user's own JSON Lines, TSV and CSV files.

| ending | form |
|---|---|
| `.jsonl`, `.json` | an object in each line, as `parse_json` accepts it |
| `.tsv` | a header line, then a record in each line; nothing is quoted |
| `.csv` | a header line, then records; Python's `csv` in strict mode, fields may be quoted |

Files may be compressed with gzip, xz or zstd: `.gz`, `.xz` or `.zst` then follows the ending. Text
is UTF-8. A byte order mark at the beginning is dropped, and empty lines are skipped. All other text
stays as it is.
"""

import contextlib
import csv
import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

from txl_tf.config.base import shown_value
from txl_tf.data.sources.text_files import MAX_LINE_BYTES, numbered_lines
from txl_tf.errors import DataDamagedError, MismatchError, UsageError, did_you_mean, errors_as
from txl_tf.storage.strict_json import parse_json_object

_CORRECT = "Correct the file, or take the record out."
_FORM = re.compile(r"\.(jsonl|json|tsv|csv)(\.gz|\.xz|\.zst)?$")
_MAX_SHOWN = 12
_LARGEST_FLOAT32 = 3.4028234663852886e38


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """Values of a record by column, its place for messages, and its number from 0 in the file.

    Values are strings in CSV and TSV, and of any type in JSON.
    """

    where: str
    number: int
    values: dict[str, Any]

    def text(self, column: str, *, may_be_empty: bool = False) -> str:
        """Returns the text of a column; raises DataDamagedError if it is missing or blank."""
        value = self.values.get(column)
        if not isinstance(value, str):
            problem = "is missing." if value is None else f"must be text, not {shown_value(value)}."
            raise self.damaged(f"The field {column!r} {problem}")
        if not may_be_empty and not value.strip():
            raise self.damaged(f"The text in the field {column!r} is empty or blank.")
        return value

    def number_in(self, column: str) -> float:
        """Returns the number in a column; raises DataDamagedError unless float32 can hold it."""
        value = self.values[column]
        if isinstance(value, str) and "_" not in value:
            with contextlib.suppress(ValueError):
                value = float(value)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not abs(value) <= _LARGEST_FLOAT32:  # also refuses NaN
            raise self.damaged(
                f"The field {column!r} must be a finite number, at most about 3.4e38. "
                f"Received: {shown_value(value)}"
            )
        return float(value)

    def damaged(self, what: str) -> DataDamagedError:
        """Creates an error that names the place of the record."""
        return DataDamagedError(what, where=self.where, remedy=_CORRECT)


def read_records(path: str, columns: Sequence[str]) -> Iterator[Record]:
    """Yields the records of a local file in order; each has at least `columns`.

    Raises UsageError for an unknown file ending, MismatchError if the first record lacks a column,
    and DataDamagedError for a damaged or empty file.
    """
    if (form := _FORM.search(path)) is None:
        raise UsageError(
            "The file name has no known ending.",
            where=path,
            remedy="Name a .jsonl, .json, .tsv or .csv file; .gz, .xz or .zst may follow. "
            "Plain text has no labels: `txl prepare` it, and `txl train --init-from MODEL`.",
        )
    rows = _table(path, form[1]) if form[1] in ("csv", "tsv") else _objects(path)
    number = -1
    for number, (where, values) in enumerate(rows):
        if missing_names := [name for name in columns if name not in values]:
            # If the first record lacks a column, its name is wrong. A later record is damaged.
            raise (DataDamagedError if number else MismatchError)(
                f"There is no column {missing_names[0]!r}.{did_you_mean(missing_names[0], values)}",
                where=where,
                remedy=f"The columns are: {shown_names(list(values))}",
            )
        yield Record(where, number, values)
    if number < 0:
        raise DataDamagedError(
            "The file has no record: it is empty, or has only a header line.",
            where=path,
            remedy="Name a file with records.",
        )


def shown_names(names: Sequence[str]) -> str:
    """Formats the first names of a list for a message."""
    return ", ".join(shown_value(name) for name in names[:_MAX_SHOWN])


def _lines(path: str) -> Iterator[tuple[str, str]]:
    """Yields the place and the text of each line, including the line end."""
    for number, _, line in numbered_lines(path):
        where = f"{path}, line {number}"
        try:
            yield where, line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataDamagedError(
                f"The line is not UTF-8, from its byte {error.start} on.",
                where=where,
                remedy="Convert the file to UTF-8.",
            ) from error


def _objects(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the place and the values of each line of JSON that is not empty."""
    for where, line in _lines(path):
        if line.strip():
            values = parse_json_object(line, where=where, remedy="Write one object in each line.")
            yield where, values


def _table(path: str, form: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the place and the values of each record below the header.

    The place is the record's first line, because quoted fields may contain line ends.
    """
    csv.field_size_limit(MAX_LINE_BYTES)  # the default is shorter than some articles
    lines = (text for _, text in _lines(path))
    if form == "csv":
        reader = csv.reader(lines, strict=True)
    else:
        reader = csv.reader(lines, strict=True, delimiter="\t", quoting=csv.QUOTE_NONE)
    header: list[str] = []
    while True:
        where = f"{path}, line {reader.line_num + 1}"
        with errors_as(
            DataDamagedError, csv.Error, f"The record is not {form.upper()}", where, _CORRECT
        ):
            fields = next(reader, None)
        if fields is None:
            return
        if fields in ([], [""]):
            continue
        if not header:
            header = fields
            if repeat := next((name for name in fields if fields.count(name) > 1), None):
                raise DataDamagedError(
                    f"The column {shown_value(repeat)} occurs twice in the header.",
                    where=where,
                    remedy="Rename one of the columns.",
                )
        elif len(fields) != len(header):
            raise DataDamagedError(
                f"The record must have {len(header)} fields, not {len(fields)}.",
                where=where,
                remedy=_CORRECT,
            )
        else:
            yield where, dict(zip(header, fields, strict=True))
