"""Reader of a task's examples from a user's own files.

Each record of a file becomes one example. `Columns` names the columns with its texts, its label and
its id. The label of a classification is the name of a class, in JSON also an integer or a truth
value. The label of a regression is a finite number. Splits whose names begin with `train` or
`valid` need labels; others may lack them.
"""

import dataclasses
from typing import Any

from txl_tf.config.base import FrozenConfig, shown_value
from txl_tf.config.task import TaskKind
from txl_tf.errors import MismatchError, UsageError, did_you_mean
from txl_tf.tasks.examples import TASK_KINDS, Example, TaskData
from txl_tf.tasks.record_files import Record, read_records, shown_names

DEFAULT_METRICS: dict[TaskKind, tuple[str, ...]] = {
    "classification": ("accuracy", "f1_macro"),
    "regression": ("pearson", "spearman", "mean_squared_error"),
}
"""Metrics of own data by the kind of the task; the first one decides which weights are best."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns(FrozenConfig):
    """Names of the columns of own files; in JSON Lines these are fields of the objects."""

    text: tuple[str, ...] = ("text",)
    """Columns with the texts of an example, in their order."""
    label: str | None = "label"
    """Column with the label; None for files without labels."""
    id: str | None = None
    """Column that names the examples; without one, records are numbered from 0."""

    def validate(self) -> None:
        """Raises ValueError if a column is named twice."""
        names = [*self.text, *(n for n in (self.label, self.id) if n is not None)]
        repeats = [name for name in names if names.count(name) > 1]
        if repeats:
            raise ValueError(f"A column must be named only once. Received: {repeats[0]!r} twice")


def read_own_data(
    paths_by_split: dict[str, str],
    kind: TaskKind,
    columns: Columns,
    labels: tuple[str, ...] | None = None,
) -> TaskData:
    """Reads the examples of a task from one file for each split.

    Args:
        paths_by_split: dict. Local files by split: "train", "valid" and others.
        kind: str. One of `TASK_KINDS`.
        columns: `Columns`.
        labels: optional tuple of str. Classes in their order. Defaults to the sorted classes of the
            "train" split, or of all splits if none is called "train".

    Returns:
        `TaskData`.

    Raises:
        UsageError: If the kind or a file ending is unknown, or `columns` lacks a needed column.
        MismatchError: If a file lacks a column, or there are fewer than two classes.
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
    if kind not in TASK_KINDS:
        raise UsageError(
            f"The kind must be {' or '.join(TASK_KINDS)}.{did_you_mean(kind, TASK_KINDS)}",
            where=f"kind {shown_value(kind)}",
        )
    if not columns.text:
        raise UsageError(
            "A task needs at least 1 text column.", where=f"columns {shown_value(columns)}"
        )
    splits = {}
    for split, path in paths_by_split.items():
        needs_label = split.startswith(("train", "valid"))
        if needs_label and columns.label is None:
            raise UsageError(
                "The file needs labels, but no label column is named.",
                where=path,
                remedy="Name the column of the labels.",
            )
        names = (*columns.text, columns.id, columns.label if needs_label else None)
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
            f"There must be at least two classes. Received: {shown_names(labels) or 'none'}",
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
