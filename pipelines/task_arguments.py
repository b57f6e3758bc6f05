"""Arguments that name the files of a task, their format and columns, and their reader."""

import argparse
from typing import Any

from txl_tf.errors import UsageError
from txl_tf.tasks.examples import TASK_KINDS, Columns, TaskData, TaskKind, read_own_data
from txl_tf.tasks.published import GLUE_TASKS, read_glue, read_race, read_squad

_GLUE = "glue/"
FORMATS = ("own", "race", "squad", *(f"{_GLUE}{name}" for name in GLUE_TASKS))
_SPLITS = ("train", "valid")
_OWN_OPTIONS = ("task", "text_columns", "label_column", "choice_columns", "id_column")


def add_task_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the files of a task."""
    data = parser.add_argument_group("data")
    data.add_argument(
        "--format",
        choices=FORMATS,
        default="own",
        metavar="NAME",
        help="own, race, squad or glue/TASK (default: own)",
    )
    data.add_argument("--data", metavar="DIR", help="folder of the files of GLUE or RACE")
    for split, use in zip(_SPLITS, ("to train on", "to evaluate"), strict=True):
        meaning = f"examples {use}: .jsonl, .tsv, .csv"
        data.add_argument(f"--{split}", metavar="FILE", help=meaning)
    own = parser.add_argument_group("own files")
    own.add_argument(
        "--task", choices=TASK_KINDS, metavar="KIND", help=f"one of {', '.join(TASK_KINDS)}"
    )
    own.add_argument(
        "--text-columns", metavar="NAME", nargs="+", help="columns of the texts (default: text)"
    )
    own.add_argument(
        "--label-column", metavar="NAME", help="column of the label or answer (default: label)"
    )
    own.add_argument(
        "--choice-columns", metavar="NAME", nargs="+", help="columns of the texts to choose from"
    )
    own.add_argument("--id-column", metavar="NAME", help="column that names the examples")


def has_task_files(arguments: argparse.Namespace) -> bool:
    """Returns true if a file of a task is named."""
    return any(getattr(arguments, name) is not None for name in ("data", *_SPLITS))


def read_task_data(
    arguments: argparse.Namespace, labels: tuple[str, ...] | None = None
) -> TaskData:
    """Reads the examples that the arguments name.

    `labels` are the classes of an existing model, by default those in the training examples.
    Options that do not fit the format are a UsageError.
    """
    given = {each: getattr(arguments, each, None) for each in (*_SPLITS, "test")}
    paths = {each: path for each, path in given.items() if path is not None}
    if arguments.format == "own":
        _refuse(arguments, ("data",), "own files are named by --train and --valid")
        return _own_data(arguments, paths, labels)
    _refuse(arguments, _OWN_OPTIONS, "only own files have columns to name")
    if arguments.format == "squad":
        _refuse(arguments, ("data",), "files of squad are named by --train and --valid")
        return read_squad(paths)
    _refuse(arguments, _SPLITS, f"the files of {arguments.format} are named by --data")
    if arguments.data is None:
        raise UsageError("The folder of the files is missing.", where="--data")
    if arguments.format == "race":
        return read_race(arguments.data)
    return read_glue(arguments.data, arguments.format.removeprefix(_GLUE))


def _own_data(
    arguments: argparse.Namespace, paths: dict[str, str], labels: tuple[str, ...] | None
) -> TaskData:
    kind: TaskKind = arguments.task or "classification"
    given: dict[str, Any] = {
        "text": arguments.text_columns and tuple(arguments.text_columns),
        "label": arguments.label_column,
        "choices": arguments.choice_columns and tuple(arguments.choice_columns),
        "id": arguments.id_column,
    }
    try:
        columns = Columns(**{name: value for name, value in given.items() if value})
    except ValueError as error:
        raise UsageError(f"{error}", where="--text-columns") from error
    return read_own_data(paths, kind, columns, labels)


def _refuse(arguments: argparse.Namespace, names: tuple[str, ...], reason: str) -> None:
    for name in names:
        if getattr(arguments, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"This option is for another format: {reason}.", where=option)
