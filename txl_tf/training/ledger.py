"""Ledger of a run: a line of JSON for every step."""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from txl_tf.errors import DataDamagedError
from txl_tf.storage.appended_text import AppendedText
from txl_tf.storage.untrusted_files import storage_errors
from txl_tf.storage.writable_folder import WritableFolder
from txl_tf.training.step_report import StepRecord, StepStatus

_MAX_LINE_BYTES = 4096
_HEADER = re.compile(rb'\{"ledger": 1, "first_step": ([1-9]\d{0,18})\}\n')
_REMEDY = "Restore it from a copy, or move it away: a new one begins at this step."
# Rounding: another number of replicas adds up in another order.
_LOSS_TOLERANCE = 1e-3


def format_line(record: StepRecord) -> str:
    """Formats a step, its loss and norm exact to the last bit.

    The tokens of its rows follow from the plan of the run; the checksum confirms them.
    """
    values = {
        "step": record.step,
        "checksum": f"{record.checksum:08x}",
        "loss": record.nats_per_token.hex(),
        "norm": record.gradient_norm.hex(),
        "status": record.status.name.lower(),
    }
    return json.dumps(values)


def parse_line(text: str) -> StepRecord:
    """Parses a line without its end; ValueError unless `format_line` writes exactly this line."""
    try:
        values = json.loads(text)
        record = StepRecord(
            step=values["step"],
            checksum=int(values["checksum"], 16),
            nats_per_token=float.fromhex(values["loss"]),
            gradient_norm=float.fromhex(values["norm"]),
            status=StepStatus[values["status"].upper()],
        )
        is_exact = type(record.step) is int and record.checksum in range(1 << 32)
        is_exact = is_exact and format_line(record) == text
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        is_exact = False
    if not is_exact:
        raise ValueError(f"`text` must be a line of a ledger. Received: {text[:200]!r}")
    return record


class StepLedger:
    """Ledger of a run: one line of JSON per step, after a header that names the first step.

    Two runs took the same steps if their ledgers are equal, byte for byte. The first step is 1,
    unless the ledger was lost or is younger than the run. Appended lines survive the process;
    `flush_to_disk`, before each checkpoint, makes them survive the machine, see `AppendedText`.
    `resume` comes before the first `append`. One process writes at a time, with the `folder` of
    its `DirectoryLock`. `say` reports a loss that differs when a step is repeated.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        folder: WritableFolder | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        self._path = os.fspath(path)
        self._files = AppendedText.at(self._path, folder, _MAX_LINE_BYTES)
        self._say = say
        self._first_step = 1
        self._next_step: int | None = None
        self._hash = hashlib.sha256()
        self._redone: dict[int, StepRecord] = {}
        self._held: list[StepRecord] = []

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
    ) -> list[StepRecord]:
        """Removes and returns the lines after a step, and continues from there.

        An incomplete line is dropped. A ledger that is missing or begins later is begun after the
        step. `expected` is the `digest` in the checkpoint of the step, and `latest` the last step
        that can be in the ledger, because no checkpoint came later. Raises DataDamagedError if
        lines are missing or altered, or if later checkpoints are gone.
        """
        cut: list[StepRecord] = []
        with self._storage_errors():
            reader = self.reader()
            if reader is None:
                self._begin(step)
            else:
                cut = self._cut(reader, step, expected, latest)
        self._next_step = step + 1
        self._redone = {record.step: record for record in cut}
        return cut

    def reader(self) -> "LedgerReader | None":
        """Returns a reader of the ledger from its first line, if there is a ledger.

        Raises DataDamagedError if the header is invalid.
        """
        lines = self._files.lines()
        return None if lines is None else LedgerReader(lines, self._path)

    def hold(self, records: Iterable[StepRecord]) -> None:
        """Adds records of the next steps; DataDamagedError if one had other tokens before."""
        for record in records:
            before = self._redone.pop(record.step, None)
            if before is not None:
                self._compare(before, record)
            self._held.append(record)

    def write(self) -> None:
        """Writes the held records, or raises StorageError."""
        self.append(self._held)
        self._held = []

    def append(self, records: Sequence[StepRecord]) -> None:
        """Writes lines for the next steps. Raises ValueError unless their steps come next."""
        steps = [record.step for record in records]
        begin = self._next_step
        if begin is None or steps != [*range(begin, begin + len(steps))]:
            raise ValueError(
                f"`records` must be of the steps from {begin} on, after `resume`. "
                f"Received: steps={steps[:5]}"
            )
        if not steps:
            return
        text = "".join(f"{format_line(record)}\n" for record in records)
        with self._storage_errors():
            self._files.append(text, begin)
        self._hash.update(text.encode())
        self._next_step = begin + len(steps)

    def flush_to_disk(self) -> None:
        """Makes the appended lines survive the machine, or raises StorageError."""
        with self._storage_errors():
            self._files.flush()

    def _compare(self, before: StepRecord, now: StepRecord) -> None:
        if before.checksum != now.checksum:
            raise DataDamagedError(
                f"Step {now.step} was done before with other tokens: checksum "
                f"{before.checksum:08x}, now {now.checksum:08x}.",
                where=self._path,
                remedy="Verify the data set; start a new --workdir if it was changed.",
            )
        difference = abs(before.nats_per_token - now.nats_per_token)
        if difference > _LOSS_TOLERANCE * abs(before.nats_per_token):
            self._say(
                f"Step {now.step} had the loss {before.nats_per_token:.6f} before and has "
                f"{now.nats_per_token:.6f} now; the same step on the same data. Suspect the "
                "hardware."
            )

    def _begin(self, step: int) -> None:
        self._first_step = step + 1
        header = f'{{"ledger": 1, "first_step": {self._first_step}}}\n'
        self._hash = hashlib.sha256(header.encode())
        self._files.begin(header)

    def _cut(
        self,
        reader: "LedgerReader",
        step: int,
        expected: dict[str, Any] | None,
        latest: int | None,
    ) -> list[StepRecord]:
        self._first_step = reader.first_step
        reader.read_until(step)
        reader.check(expected)
        self._hash = reader.sha256.copy()
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


class LedgerReader:
    """Streaming reader of a ledger; its memory does not grow with the length.

    A line without an end, or longer than any step needs, is invalid. Raises DataDamagedError if
    the header is invalid.
    """

    def __init__(self, lines: Iterable[bytes], where: str) -> None:
        self._lines = iter(lines)
        self._where = where
        self._number = 1
        self.sha256 = hashlib.sha256()
        """SHA-256 of the bytes up to the end of the last line read."""
        self.num_bytes = 0
        """Bytes up to the end of the last line read."""
        header = next(self._lines, b"")
        match = _HEADER.fullmatch(header)
        if match is None:
            raise self.damaged("it does not begin as a ledger does")
        self.first_step = int(match[1])
        """First step in the ledger."""
        self.last_step = self.first_step - 1
        """Last step read."""
        self._count(header)

    def read_until(self, step: int) -> None:
        """Reads the lines up to and including a step.

        Raises DataDamagedError unless there is one line for each step.
        """
        while self.last_step < step:
            content = next(self._lines, b"")
            self._number += 1
            if not content:
                raise self.damaged(f"the line of step {self.last_step + 1} is missing")
            record = _parsed(content)
            if record is None:
                shown = ascii(content[:60].decode("ascii", "replace"))
                raise self.damaged(f"not a line of a ledger: {shown}")
            if record.step != self.last_step + 1:
                raise self.damaged(f"of step {record.step} instead of {self.last_step + 1}")
            self.last_step = record.step
            self._count(content)

    def check(self, digest: dict[str, Any] | None) -> None:
        """Compares the lines read with the `StepLedger.digest` of a checkpoint of the last step.

        A ledger that begins after the checkpoint replaces a lost one. Raises DataDamagedError if
        the lines were altered.
        """
        if digest is None or self.last_step < self.first_step:
            return
        if digest != {"first_step": self.first_step, "sha256": self.sha256.hexdigest()}:
            raise DataDamagedError(
                f"The ledger up to step {self.last_step} is not what was written: "
                "a line was altered.",
                where=f"{self._where}, up to line {self._number}",
                remedy=_REMEDY,
            )

    def read_rest(self) -> tuple[list[StepRecord], bool]:
        """Reads on to the first invalid line: a power cut may leave anything behind.

        Returns the lines, and True if at most one incomplete line follows them.
        """
        rest: list[StepRecord] = []
        for content in self._lines:
            record = _parsed(content)
            if record is None or record.step != self.last_step + 1 + len(rest):
                is_cut = not content.endswith(b"\n") and len(content) < _MAX_LINE_BYTES
                return rest, is_cut and next(self._lines, None) is None
            rest.append(record)
        return rest, True

    def damaged(self, what: str) -> DataDamagedError:
        """Creates the error about the last line read."""
        return DataDamagedError(
            f"The ledger of the run is damaged at line {self._number}: {what}.",
            where=self._where,
            remedy=_REMEDY,
        )

    def _count(self, content: bytes) -> None:
        self.sha256.update(content)
        self.num_bytes += len(content)


def _parsed(content: bytes) -> StepRecord | None:
    """Parses a line with its end; `None` if it is invalid."""
    try:
        return parse_line(content[:-1].decode("ascii")) if content.endswith(b"\n") else None
    except ValueError:
        return None
