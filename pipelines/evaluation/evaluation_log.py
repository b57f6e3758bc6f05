"""What was evaluated of a run already."""

import json
import os
from typing import Any

from pipelines.evaluation.evaluation_lines import read_evaluation_lines
from txl_tf.directory_lock import DirectoryLock
from txl_tf.errors import StorageError
from txl_tf.evaluation.evaluation_result import EvaluationResult
from txl_tf.file_storage import first_line, make_folder, write_file

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
        self._lines = self._read()
        self.steps = {
            line["result"]["step"] for line in self._lines if line["conditions"] == self._conditions
        }
        """Steps that were evaluated under these conditions."""

    def lock(self) -> DirectoryLock:
        """The lock that whoever appends holds."""
        return DirectoryLock(self._folder)

    def append(self, result: EvaluationResult) -> None:
        """Writes down a result; it is on the disk afterwards.

        Args:
            result: `EvaluationResult` under these conditions.

        Raises:
            StorageError: If it cannot be written.
        """
        self._lines.append({"conditions": self._conditions, "result": result.to_dict()})
        self.steps.add(result.step)
        content = "".join(json.dumps(line) + "\n" for line in self._lines)
        try:
            make_folder(self._folder)
            # All of it, because object stores cannot append.
            write_file(self._path, content.encode())
        except OSError as error:
            raise StorageError(
                f"The result cannot be written: {first_line(error)}",
                where=self._path,
                remedy="Make room or check the permissions.",
            ) from error

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
