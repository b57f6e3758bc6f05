"""What was evaluated of a run already."""

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

from pipelines.evaluation.evaluation_lines import read_evaluation_lines
from txl_tf.directory_lock import DirectoryLock
from txl_tf.errors import StorageError
from txl_tf.evaluation.evaluation_result import EvaluationResult
from txl_tf.file_storage import first_line
from txl_tf.writable_folder import WritableFolder

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

        Yields:
            The lock.

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
