"""Evaluation results on disk: written line by line, read again and checked."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator
from typing import Any

from txl_tf.errors import DataDamagedError, StorageError
from txl_tf.evaluation.result import EvaluationResult
from txl_tf.storage.files import first_line, read_file
from txl_tf.storage.locks import DirectoryLock
from txl_tf.storage.untrusted_files import MAX_DESCRIPTION_BYTES, MAX_VALUES, parse_json
from txl_tf.storage.writable_folder import WritableFolder

_REMEDY = "Restore the file from a copy, or remove it to evaluate anew."
_FIELDS = {field.name for field in dataclasses.fields(EvaluationResult)}


def read_evaluation_lines(path: str) -> list[dict[str, Any]]:
    """Reads a file with a line of JSON for each evaluation.

    Args:
        path: str. The file.

    Returns:
        List of dicts with the dicts `conditions` and `result`.

    Raises:
        DataDamagedError: If a line is not one of this program, or its figures
            do not follow from its totals.
        OSError: If it cannot be read; FileNotFoundError if it is not there.
    """
    lines = []
    for number, content in enumerate(read_file(path, max_bytes=MAX_DESCRIPTION_BYTES).splitlines()):
        try:
            lines.append(_checked(parse_json(content, max_values=MAX_VALUES)))
        except (ValueError, ArithmeticError, TypeError) as error:
            raise DataDamagedError(
                "The earlier results cannot be read: a line is not one of this program: "
                f"{first_line(error)}",
                where=f"{path}, line {number + 1}",
                remedy=_REMEDY,
            ) from error
    return lines


def _checked(line: Any) -> dict[str, Any]:
    if not isinstance(line, dict) or line.keys() != {"conditions", "result"}:
        raise ValueError("`conditions` and `result` are not all that is there")
    conditions, result = line["conditions"], line["result"]
    if not isinstance(conditions, dict) or not isinstance(result, dict):
        raise ValueError("`conditions` or `result` is no object")
    if type(result.get("step")) is not int or result["step"] < 0:
        raise ValueError(f"`result.step` is {ascii(result.get('step'))[:40]}")
    # Lines of an earlier version may know less.
    if result.keys() >= _FIELDS:
        figures = EvaluationResult(**{name: result[name] for name in _FIELDS}).to_dict()
        differing = [name for name in figures if figures[name] != result.get(name)]
        if differing or figures.keys() != result.keys():
            name = (differing or sorted(figures.keys() ^ result.keys()))[0]
            raise ValueError(f"`result.{ascii(name)[1:-1][:40]}` does not follow from the totals")
    return line


_FILE = "results.jsonl"


class EvaluationLog:
    """A file with a line of JSON for each evaluation of a split.

    Each line has the `conditions` of the evaluation and the `result`, so that
    the same checkpoint is not evaluated twice under the same conditions.

    Args:
        folder: str. Folder of the evaluations of a run.
        split: str. Name of the split.
        conditions: dict of JSON values. What decides the result besides the
            step.

    Raises:
        DataDamagedError: If the file cannot be understood.
        StorageError: If it cannot be read.
    """

    def __init__(self, folder: str, split: str, conditions: dict[str, Any]) -> None:
        self._folder = os.path.join(folder, split)
        self._path = os.path.join(self._folder, _FILE)
        self._conditions = json.loads(json.dumps(conditions))
        self._writable: WritableFolder | None = None
        self._lines: list[dict[str, Any]] = []
        self.steps: set[int] = set()
        """Steps that were evaluated under these conditions."""
        self._load()

    @contextlib.contextmanager
    def locked(self) -> Iterator[DirectoryLock]:
        """Holds the lock that whoever appends must hold.

        Raises:
            OutputExistsError: If another process holds it.
            DataDamagedError: If the file cannot be understood.
            StorageError: If it cannot be read, or the folder not be locked.
        """
        with DirectoryLock(self._folder) as lock:
            # Another process may have appended to it until now.
            self._load()
            self._writable = lock.folder
            yield lock

    def append(self, result: EvaluationResult) -> None:
        """Writes down a result, within `locked`; it is on the disk afterwards.

        Args:
            result: `EvaluationResult` under these conditions.

        Raises:
            StorageError: If it cannot be written.
            OutputExistsError: If the lock was lost; nothing is written.
        """
        if self._writable is None:
            raise ValueError(f"It must be locked. Received: step={result.step}")
        self._lines.append({"conditions": self._conditions, "result": result.to_dict()})
        self.steps.add(result.step)
        content = "".join(json.dumps(line) + "\n" for line in self._lines)
        try:
            # All of it, because object stores cannot append.
            self._writable.write(_FILE, content.encode())
        except OSError as error:
            raise StorageError(
                f"The result cannot be written: {first_line(error)}",
                where=self._path,
                remedy="Make room or check the permissions.",
            ) from error

    def _load(self) -> None:
        self._lines = self._read()
        self.steps.clear()
        self.steps.update(
            line["result"]["step"] for line in self._lines if line["conditions"] == self._conditions
        )

    def _read(self) -> list[dict[str, Any]]:
        try:
            return read_evaluation_lines(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StorageError(
                f"The earlier results cannot be read: {first_line(error)}",
                where=self._path,
                remedy="Check the storage and the permissions.",
            ) from error
