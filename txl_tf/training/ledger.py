"""Text file with a line for every step of a run."""

import contextlib
import hashlib
import os
from collections.abc import Sequence
from typing import Any

from txl_tf.errors import DataDamagedError
from txl_tf.storage.appended_text import AppendedText
from txl_tf.storage.untrusted_files import storage_errors
from txl_tf.storage.writable_folder import WritableFolder
from txl_tf.training.ledger_lines import MAX_LINE_BYTES, LedgerLine, LedgerReader


class StepLedger:
    """Ledger of a run: one text line per step.

    Two runs took the same steps if their ledgers are equal, byte for byte. The header names the
    first step: 1, unless the ledger was lost or is younger than the run. Appended lines survive
    the process; `flush_to_disk`, before each checkpoint, makes them survive the machine, see
    `AppendedText`. `resume` comes before the first `append`. One process writes at a time, with
    the `folder` of its `DirectoryLock`.
    """

    def __init__(self, path: str | os.PathLike[str], folder: WritableFolder | None = None) -> None:
        self._path = os.fspath(path)
        self._files = AppendedText.at(self._path, folder, MAX_LINE_BYTES)
        self._first_step = 1
        self._next_step: int | None = None
        self._hash = hashlib.sha256()

    @property
    def first_step(self) -> int:
        """First step in the ledger, after `resume`."""
        return self._first_step

    @property
    def digest(self) -> dict[str, Any]:
        """First step and SHA-256 of all bytes; checkpoints keep it to detect altered lines."""
        return {"first_step": self._first_step, "sha256": self._hash.hexdigest()}

    def resume(
        self, step: int, expected: dict[str, Any] | None = None, latest: int | None = None
    ) -> list[LedgerLine]:
        """Removes and returns the lines after a step, and continues from there.

        An incomplete line is dropped. A ledger that is missing or begins later is begun after the
        step. `expected` is the `digest` in the checkpoint of the step, and `latest` the last step
        that can be in the ledger, because no checkpoint came later. Raises DataDamagedError if
        lines are missing or altered, or if later checkpoints are gone.
        """
        cut: list[LedgerLine] = []
        with self._storage_errors():
            reader = self.reader()
            if reader is None:
                self._begin(step)
            else:
                cut = self._cut(reader, step, expected, latest)
        self._next_step = step + 1
        return cut

    def reader(self) -> LedgerReader | None:
        """Returns a reader of the ledger from its first line, if there is a ledger.

        Raises DataDamagedError if the header is invalid.
        """
        lines = self._files.lines()
        return None if lines is None else LedgerReader(lines, self._path)

    def append(self, lines: Sequence[LedgerLine]) -> None:
        """Writes lines for the next steps. Raises ValueError unless their steps come next."""
        steps = [line.step for line in lines]
        begin = self._next_step
        if begin is None or steps != [*range(begin, begin + len(steps))]:
            raise ValueError(
                f"`lines` must be of the steps from {begin} on, after `resume`. "
                f"Received: steps={steps[:5]}"
            )
        if not steps:
            return
        text = "".join(f"{line}\n" for line in lines)
        with self._storage_errors():
            self._files.append(text, begin)
        self._hash.update(text.encode())
        self._next_step = begin + len(steps)

    def flush_to_disk(self) -> None:
        """Makes the appended lines survive the machine, or raises StorageError."""
        with self._storage_errors():
            self._files.flush()

    def _begin(self, step: int) -> None:
        self._first_step = step + 1
        header = f"txl ledger format=1 first={self._first_step}\n"
        self._hash = hashlib.sha256(header.encode())
        self._files.begin(header)

    def _cut(
        self,
        reader: LedgerReader,
        step: int,
        expected: dict[str, Any] | None,
        latest: int | None,
    ) -> list[LedgerLine]:
        self._first_step = reader.first_step
        reader.read_until(step)
        reader.check(expected)
        self._hash = reader.copied_hash()
        num_bytes = reader.num_bytes
        cut, _ = reader.read_rest()
        reached = reader.last_step + len(cut)
        if latest is not None and reached > latest:
            raise DataDamagedError(
                f"The run has reached step {reached}, and the checkpoints of its later steps are "
                f"missing: the newest that can be read is of step {step}.",
                where=self._path,
                remedy="Restore them from a copy. To go back on purpose, move the ledger away; "
                "to begin anew, remove the folder or name a new one.",
            )
        if step + 1 < self._first_step:
            self._begin(step)
        else:
            self._files.cut(num_bytes)
        return cut

    def _storage_errors(self) -> contextlib.AbstractContextManager[None]:
        what = "The ledger of the run cannot be read or written"
        remedy = "Make room or check the permissions, and start again."
        return storage_errors(what, self._path, remedy)
