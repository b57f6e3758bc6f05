"""Examples of a fine-tuning task, and their reader for a user's own files.

An example has one or more columns of texts and one with its label. The label of a classification is
the name of a class, in JSON also an integer or a truth value. That of a regression is a finite
number. Splits whose names begin with `train` or `valid` need labels; others may lack them.

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
import re
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from txl_tf.config.base import FrozenConfig
from txl_tf.config.experiment import TaskKind
from txl_tf.config.setting_values import shown_value
from txl_tf.data.sources.text_files import MAX_LINE_BYTES, numbered_lines
from txl_tf.errors import DataDamagedError, MismatchError, UsageError, did_you_mean, errors_as
from txl_tf.storage.strict_json import parse_json_object

TASK_KINDS: tuple[TaskKind, ...] = get_args(TaskKind)
CORRECT = "Correct the file, or take the record out."
_ONE_OBJECT = "Write one object in each line."
_FORM = re.compile(r"\.(jsonl|json|tsv|csv)(\.gz|\.xz|\.zst)?$")
_MAX_SHOWN = 12
_LARGEST_FLOAT32 = 3.4028234663852886e38

DEFAULT_METRICS: dict[TaskKind, tuple[str, ...]] = {
    "classification": ("accuracy", "f1_macro"),
    "regression": ("pearson", "spearman", "mean_squared_error"),
}
"""Metrics of own data, by kind; the first one decides which weights are best."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """Input of one prediction, with its label if known.

    Args:
        name: str. The id in the file, or the number of the record as text.
        where: str. Place for messages, such as `"train.jsonl, line 12"`.
        texts: tuple of str. One text or more, such as a pair.
        label: The name of the class, or a number. None if unknown.
    """

    name: str
    where: str
    texts: tuple[str, ...]
    label: str | float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskData:
    """All examples of a task, by split.

    Args:
        kind: str. One of `TASK_KINDS`.
        labels: tuple of str. Classes in their order, or none.
        splits: dict of lists of `Example`. `"train"`, `"valid"` and others, such as `"test"`.
        metrics: tuple of str. Names for `compute_metrics`; the first one selects the best weights.

    Raises:
        DataDamagedError: If two examples of a split have the same name.
    """

    kind: TaskKind
    labels: tuple[str, ...]
    splits: dict[str, list[Example]]
    metrics: tuple[str, ...]

    def __post_init__(self) -> None:
        for examples in self.splits.values():
            places: dict[str, str] = {}
            for example in examples:
                if (first := places.get(example.name)) is not None:
                    raise DataDamagedError(
                        f"The id {shown_value(example.name)} is used twice; first in {first}.",
                        where=example.where,
                        remedy=CORRECT,
                    )
                places[example.name] = example.where


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns(FrozenConfig):
    """Columns of own files; of JSON Lines the fields of the objects."""

    text: tuple[str, ...] = ("text",)
    """Columns of the texts of an example, in their order."""
    label: str | None = "label"
    """Column of the label; None for files without labels."""
    id: str | None = None
    """Column that names the examples; without one, records are numbered from 0."""

    def validate(self) -> None:
        """Raises ValueError if a column is named twice."""
        names = [*self.text, *(n for n in (self.label, self.id) if n is not None)]
        doubled = [name for name in names if names.count(name) > 1]
        if doubled:
            raise ValueError(f"A column must be named only once. Received: {doubled[0]!r} twice")


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """Place of a record for messages, its number from 0, and its values: strings, but in JSON."""

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
        """Returns a number from text or JSON; DataDamagedError unless it is a finite float32."""
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
        return DataDamagedError(what, where=self.where, remedy=CORRECT)


def read_own_data(
    paths_by_split: dict[str, str],
    kind: TaskKind,
    columns: Columns,
    labels: tuple[str, ...] | None = None,
) -> TaskData:
    """Reads the files of all splits.

    Args:
        paths_by_split: dict. Local files by split: "train", "valid" and others.
        kind: str. One of `TASK_KINDS`.
        columns: `Columns`.
        labels: optional tuple of str. Classes in their order. Defaults to the sorted classes of the
            "train" split, or of all splits without a "train" split.

    Returns:
        `TaskData`.

    Raises:
        UsageError: If the kind or a file ending is unknown, or a column is not named.
        MismatchError: If a column is missing, or there are fewer than two classes.
        DataDamagedError: If a file or a record is damaged.
        InputMissingError: If there is no such file.
        StorageError: If a file cannot be read.

    Example:
    ```python
    with open("reviews.csv", "w") as file:
        for line in ("text,label", "A fine book.,good", "Too long.,bad"):
            print(line, file=file)
    data = read_own_data({"train": "reviews.csv"}, "classification", Columns())
    print(data.labels, data.splits["train"][0].texts)
    ```
    """
    problem = None
    if kind not in TASK_KINDS:
        problem = f"The kind must be {' or '.join(TASK_KINDS)}.{did_you_mean(kind, TASK_KINDS)}"
    elif not columns.text:
        problem = "A task needs at least 1 text column."
    if problem is not None:
        raise UsageError(problem, where=f"kind {shown_value(kind)}, columns {shown_value(columns)}")
    splits = {}
    for split, path in paths_by_split.items():
        needs_label = split.startswith(("train", "valid"))
        if needs_label and columns.label is None:
            raise UsageError(
                "The file needs labels, but no label column is named.",
                where=path,
                remedy="Name the column of the labels.",
            )
        label_names = (columns.label,) if needs_label else ()
        names = (*columns.text, columns.id, *label_names)
        records = read_records(path, [name for name in names if name is not None])
        splits[split] = [_example(record, kind, columns, needs_label) for record in records]
    if kind == "classification":
        labels = _labels_of(splits) if labels is None else labels
    return TaskData(kind=kind, labels=labels or (), splits=splits, metrics=DEFAULT_METRICS[kind])


def _example(record: Record, kind: TaskKind, columns: Columns, needs_label: bool) -> Example:
    name = str(record.number)
    if columns.id is not None:
        value = record.values[columns.id]
        name = str(value) if type(value) is int else record.text(columns.id)
    texts = tuple(record.text(each) for each in columns.text)
    column = str(columns.label)
    label = record.values.get(column)
    if label is None or (isinstance(label, str) and not label.strip()):
        if needs_label:
            raise record.damaged(f"The label in the field {column!r} is missing or blank.")
        label = None
    elif kind == "regression":
        label = record.number_in(column)
    else:
        label = _class_name(record, column, label)
    return Example(name=name, where=record.where, texts=texts, label=label)


def _labels_of(splits: dict[str, list[Example]]) -> tuple[str, ...]:
    sources = [splits["train"]] if "train" in splits else [*splits.values()]
    examples = [example for split in sources for example in split]
    labels = sorted({str(each.label) for each in examples if each.label is not None})
    if len(labels) < 2:
        raise MismatchError(
            f"There must be at least two classes. Received: {_shown_names(labels) or 'none'}",
            where=examples[0].where.rpartition(", line")[0] if examples else "",
            remedy="Name another label column, or give all classes.",
        )
    return tuple(labels)


def _class_name(record: Record, column: str, label: Any) -> str:
    if isinstance(label, bool):
        return "true" if label else "false"
    if not isinstance(label, str | int):
        raise record.damaged(
            f"The label in the field {column!r} must be a name, an integer, true or false. "
            f"Received: {shown_value(label)}"
        )
    return str(label)


def read_records(path: str, columns: Sequence[str]) -> Iterator[Record]:
    """Reads the records of a local file in order, one at a time, which have at least `columns`.

    Raises MismatchError for a missing column, UsageError for an unknown file ending,
    DataDamagedError for a damaged or empty file.
    """
    if (form := _FORM.search(path)) is None:
        raise UsageError(
            "The file name has no known ending.",
            where=path,
            remedy="Name a .jsonl, .json, .tsv or .csv file; .gz, .xz or .zst may follow. "
            "Plain text has no labels: `txl prepare` it, and `txl train --init-from MODEL`.",
        )
    rows = _table(path, form[1]) if form[1] in ("csv", "tsv") else _objects(path)
    number = 0
    for where, values in rows:
        if missing_names := [name for name in columns if name not in values]:
            # In the first record the column name is wrong; a later one is damaged.
            raise (DataDamagedError if number else MismatchError)(
                f"There is no column {missing_names[0]!r}.{did_you_mean(missing_names[0], values)}",
                where=where,
                remedy=f"The columns are: {_shown_names(list(values))}",
            )
        yield Record(where, number, values)
        number += 1
    if number == 0:
        raise DataDamagedError(
            "The file has no record: it is empty, or has only a header line.",
            where=path,
            remedy="Name a file with records.",
        )


def _shown_names(names: Sequence[str]) -> str:
    """Formats the first names of a list for one line of a message."""
    return ", ".join(shown_value(name) for name in names[:_MAX_SHOWN])


def _lines(path: str) -> Iterator[tuple[str, str]]:
    """Yields the place and the text of each line, with its end."""
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
            yield where, parse_json_object(line, where=where, remedy=_ONE_OBJECT)


def _table(path: str, form: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the place of the first line and the values of each record below a header."""
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
            DataDamagedError, csv.Error, f"The record is not {form.upper()}", where, CORRECT
        ):
            fields = next(reader, None)
        if fields is None:
            return
        if fields in ([], [""]):
            continue
        if not header:
            header = fields
            if doubled := next((name for name in fields if fields.count(name) > 1), None):
                raise DataDamagedError(
                    f"The column {shown_value(doubled)} occurs twice in the header.",
                    where=where,
                    remedy="Rename one of the columns.",
                )
        elif len(fields) != len(header):
            raise DataDamagedError(
                f"The record must have {len(header)} fields, not {len(fields)}.",
                where=where,
                remedy=CORRECT,
            )
        else:
            yield where, dict(zip(header, fields, strict=True))
