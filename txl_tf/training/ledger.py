"""Figures of training steps, and the ledger of a run: a line of JSON for every step."""

import contextlib
import dataclasses
import enum
import hashlib
import json
import os
import re
import statistics
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from txl_tf.errors import DataDamagedError, storage_errors
from txl_tf.storage.appended_text import appended_text
from txl_tf.storage.writable_folder import WritableFolder

_MAX_LINE_BYTES = 4096
_HEADER = re.compile(rb'\{"ledger": 1, "first_step": ([1-9]\d{0,18})\}\n')
_REMEDY = "Restore the ledger from a copy, or move it away: the run then begins a new ledger."
# Relative. A repeated step may round differently, since the number of replicas decides the order in
# which numbers are added up.
_LOSS_TOLERANCE = 1e-3


class StepStatus(enum.IntEnum):
    """Outcome of a training step, see `TrainStep`; only an applied step changes the weights."""

    APPLIED = 1
    SKIPPED_NON_FINITE = 2
    STOPPED = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepRecord:
    """Figures of one step, counted from 1; loss and norm before clipping are float32 values."""

    step: int
    nats_per_token: float
    gradient_norm: float
    checksum: int
    """Checksum of the tokens of all rows, see `batch_checksum`."""
    status: StepStatus


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopReport:
    """Figures of a loop of at least one step.

    `num_tokens` counts the tokens of all replicas. `learning_rate` is the rate of the last step.
    `has_compiled` is true if the wall time, `seconds`, includes tracing and compiling.
    """

    records: tuple[StepRecord, ...]
    num_tokens: int
    learning_rate: float
    seconds: float
    has_compiled: bool

    @property
    def step(self) -> int:
        """Steps done since the run began."""
        return self.records[-1].step

    @property
    def num_steps(self) -> int:
        """Steps in this loop."""
        return len(self.records)

    @property
    def num_skipped_steps(self) -> int:
        """Steps that changed no weight."""
        return sum(record.status != StepStatus.APPLIED for record in self.records)

    @property
    def nats_per_token(self) -> float:
        """Mean loss of the applied steps, or of all steps if no step was applied."""
        return statistics.fmean(record.nats_per_token for record in self._counted_records())

    @property
    def gradient_norm(self) -> float:
        """Mean gradient norm before clipping, over the same steps."""
        return statistics.fmean(record.gradient_norm for record in self._counted_records())

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all replicas per second of wall time."""
        return self.num_tokens / self.seconds

    def _counted_records(self) -> list[StepRecord]:
        applied_records = [record for record in self.records if record.status == StepStatus.APPLIED]
        return applied_records or list(self.records)


def format_line(record: StepRecord) -> str:
    """Formats the figures of a step as JSON, with loss and norm exact to the last bit."""
    values = {
        "step": record.step,
        "checksum": f"{record.checksum:08x}",
        "loss": record.nats_per_token.hex(),
        "norm": record.gradient_norm.hex(),
        "status": record.status.name.lower(),
    }
    return json.dumps(values)


def parse_line(text: str) -> StepRecord | None:
    """Parses a line without its end; `None` unless `format_line` writes exactly this line."""
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
        return record if is_exact and format_line(record) == text else None
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return None


class StepLedger:
    """Ledger of a run: one line of JSON per step, after a header that names the first step.

    Two runs took the same steps if their ledgers are equal, byte for byte. The first step is 1,
    unless a ledger was lost and begins again. One process writes at a time, in its `locked_folder`.

    Calls come in this order. `resume` cuts the ledger off after the step of a checkpoint, and
    remembers the lines after it. For each loop, `hold` compares its records with these lines and
    `write` appends them. `flush_to_disk` comes before each checkpoint. `say` reports a loss that
    differs when a step is repeated.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        folder: WritableFolder | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        self._path = os.fspath(path)
        self._files = appended_text(self._path, folder)
        self._say = say
        self._first_step = 1
        self._hash = hashlib.sha256()
        self._redone: dict[int, StepRecord] = {}
        self._held: list[StepRecord] = []

    @property
    def digest(self) -> dict[str, Any]:
        """First step and SHA-256 of all bytes; checkpoints keep it to detect altered lines."""
        return {"first_step": self._first_step, "sha256": self._hash.hexdigest()}

    def resume(
        self, step: int, expected: dict[str, Any] | None = None, latest: int | None = None
    ) -> list[StepRecord]:
        """Removes and returns the lines after a step, and continues from there.

        If the ledger is missing or begins later, it begins again after the step. `expected` is the
        `digest` in the checkpoint of the step. Raises DataDamagedError if lines are missing or
        altered, or if the ledger goes beyond the step `latest`: then there was a later checkpoint.
        """
        head = self.read(step, expected)
        rest = [] if head is None else head.rest
        last = 0 if head is None else head.last_step + len(rest)
        if latest is not None and last > latest:
            raise DataDamagedError(
                f"The run reached step {last}, but its newest checkpoint that can be read is of "
                f"step {step}.",
                where=self._path,
                remedy="Restore the later checkpoints from a copy, or move the ledger away to "
                f"repeat the steps after {step}; to begin anew, choose a new --workdir.",
            )
        with self._storage_errors():
            if head is None or step + 1 < head.first_step:
                self._first_step = step + 1
                header = f'{{"ledger": 1, "first_step": {self._first_step}}}\n'
                self._hash = hashlib.sha256(header.encode())
                self._files.begin(header)
            else:
                self._first_step, self._hash = head.first_step, head.sha256
                self._files.cut(head.num_bytes)
        self._redone = {record.step: record for record in rest}
        return rest

    def read(self, step: int, expected: dict[str, Any] | None = None) -> "LedgerLines | None":
        """Reads the ledger; `None` without one.

        `expected` is the `digest` in the checkpoint of `step`. Raises DataDamagedError if a line up
        to this step is missing or altered.
        """
        with self._storage_errors():
            lines = self._files.lines()
            return None if lines is None else _read_lines(lines, step, expected, self._path)

    def hold(self, records: Iterable[StepRecord]) -> None:
        """Adds records of the next steps, which `write` writes.

        Raises DataDamagedError if a repeated step had other tokens before.
        """
        for record in records:
            before = self._redone.pop(record.step, None)
            if before is not None:
                self._compare(before, record)
            self._held.append(record)

    def write(self) -> None:
        """Writes the held records, or raises StorageError."""
        if not self._held:
            return
        text = "".join(f"{format_line(record)}\n" for record in self._held)
        with self._storage_errors():
            self._files.append(text, self._held[0].step)
        self._hash.update(text.encode())
        self._held = []

    def flush_to_disk(self) -> None:
        """Forces the written lines to the disk, or raises StorageError."""
        with self._storage_errors():
            self._files.flush()

    def _compare(self, before: StepRecord, now: StepRecord) -> None:
        if before.checksum != now.checksum:
            raise DataDamagedError(
                f"Step {now.step} was done before with other tokens: checksum "
                f"{before.checksum:08x}, now {now.checksum:08x}.",
                where=self._path,
                remedy="Restore the data set, or choose a new --workdir if you changed the data.",
            )
        difference = abs(before.nats_per_token - now.nats_per_token)
        if difference > _LOSS_TOLERANCE * abs(before.nats_per_token):
            self._say(
                f"Step {now.step} had the loss {before.nats_per_token:.6f} before and has "
                f"{now.nats_per_token:.6f} now on the same data. The hardware may be faulty."
            )

    def _storage_errors(self) -> contextlib.AbstractContextManager[None]:
        return storage_errors(
            "The ledger of the run cannot be read or written",
            self._path,
            "Make room or check the permissions, and start again.",
        )


class LedgerLines(NamedTuple):
    """Contents of a ledger, which is read for a step.

    `last_step`, `num_bytes` and `sha256` describe the lines up to this step, and `rest` has the
    valid lines after it. `is_whole` is true if at most one incomplete line follows: a kill leaves
    no more, but a power cut may.
    """

    first_step: int
    last_step: int
    num_bytes: int
    sha256: Any
    rest: list[StepRecord]
    is_whole: bool


def _read_lines(
    lines: Iterator[bytes], step: int, expected: dict[str, Any] | None, where: str
) -> LedgerLines:
    """Reads the lines of a ledger, see `StepLedger.read`; `where` is its path for errors."""

    def damaged(what: str, number: int) -> DataDamagedError:
        return DataDamagedError(
            f"The ledger of the run is damaged at line {number}: {what}.",
            where=where,
            remedy=_REMEDY,
        )

    header = next(lines, b"")
    match = _HEADER.fullmatch(header)
    if match is None:
        raise damaged("the header is missing or altered", 1)
    first_step = int(match[1])
    last_step, num_bytes, sha256 = first_step - 1, len(header), hashlib.sha256(header)
    rest: list[StepRecord] = []
    is_whole = True
    for content in lines:
        is_line = content.isascii() and content.endswith(b"\n")
        record = parse_line(content[:-1].decode()) if is_line else None
        next_step = last_step + 1 + len(rest)
        if record is None or record.step != next_step:
            if next_step <= step:
                excerpt = ascii(content[:60].decode("ascii", "replace"))
                raise damaged(
                    f"it is not of step {next_step}: {excerpt}", next_step - first_step + 2
                )
            is_cut = not content.endswith(b"\n") and len(content) < _MAX_LINE_BYTES
            is_whole = is_cut and next(lines, None) is None
            break
        if next_step > step:
            rest.append(record)
        else:
            last_step, num_bytes = next_step, num_bytes + len(content)
            sha256.update(content)
    number = last_step - first_step + 2
    if last_step < step:
        raise damaged(f"the line of step {last_step + 1} is missing", number + 1)
    # A ledger that begins after the checkpoint replaces a lost one.
    state = {"first_step": first_step, "sha256": sha256.hexdigest()}
    if last_step >= first_step and expected not in (None, state):
        raise DataDamagedError(
            f"The ledger up to step {last_step} is not what was written: a line was altered.",
            where=f"{where}, up to line {number}",
            remedy=_REMEDY,
        )
    return LedgerLines(first_step, last_step, num_bytes, sha256, rest, is_whole)
