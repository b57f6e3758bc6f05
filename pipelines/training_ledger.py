"""Ledger of a run as it trains: repeated steps are compared, new lines held back."""

from collections.abc import Callable, Iterable
from typing import Any

from txl_tf.errors import DataDamagedError
from txl_tf.storage.writable_folder import WritableFolder
from txl_tf.training.ledger import StepLedger
from txl_tf.training.ledger_lines import LedgerLine
from txl_tf.training.step_records import StepRecord

from .run_data import Plan

# Rounding: another number of replicas adds up in another order.
_LOSS_TOLERANCE = 1e-3


class TrainingLedger:
    """Ledger that holds back its lines until `write`, and compares repeated steps with theirs."""

    def __init__(
        self, path: str, folder: WritableFolder, plan: Plan, say: Callable[[str], None]
    ) -> None:
        self._path = path
        self._ledger = StepLedger(path, folder)
        self._plan = plan
        self._say = say
        self._redone: dict[int, LedgerLine] = {}
        self._held_lines: list[LedgerLine] = []

    @property
    def digest(self) -> dict[str, Any]:
        return self._ledger.digest

    def resume(self, step: int, expected: dict[str, Any] | None, latest: int) -> None:
        """Continues after a step, see `StepLedger.resume`."""
        lines = self._ledger.resume(step, expected, latest)
        self._redone = {line.step: line for line in lines}

    def hold(self, records: Iterable[StepRecord]) -> None:
        """Adds records of the next steps; DataDamagedError if one had other tokens before."""
        lines = [
            LedgerLine(
                step=record.step,
                positions=self._plan.positions(record.step - 1),
                checksum=record.checksum,
                loss=record.nats_per_token,
                gradient_norm=record.gradient_norm,
                status=record.status.name.lower(),
            )
            for record in records
        ]
        for line in lines:
            before = self._redone.pop(line.step, None)
            if before is not None:
                self._compare(before, line)
        self._held_lines += lines

    def write(self) -> None:
        """Writes the held lines, or raises StorageError."""
        self._ledger.append(self._held_lines)
        self._held_lines = []

    def flush_to_disk(self) -> None:
        self._ledger.flush_to_disk()

    def _compare(self, before: LedgerLine, now: LedgerLine) -> None:
        """Compares a repeated step with its ledger line."""
        if (before.positions, before.checksum) != (now.positions, now.checksum):
            raise DataDamagedError(
                f"Step {now.step} was done before with other tokens: checksum "
                f"{before.checksum:08x}, now {now.checksum:08x}.",
                where=self._path,
                remedy="Verify the data set; start a new --workdir if it was changed.",
            )
        if abs(before.loss - now.loss) > _LOSS_TOLERANCE * abs(before.loss):
            self._say(
                f"Step {now.step} had the loss {before.loss:.6f} before and has {now.loss:.6f} "
                "now; the same step on the same data. Suspect the hardware."
            )
