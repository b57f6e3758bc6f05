"""Goes through the lines of a ledger, in order, and hashes them."""

import hashlib
import re
from collections.abc import Iterable
from typing import Any

from txl_tf.errors import DataDamagedError
from txl_tf.training.ledger_line import LedgerLine

# The rows of a step are a few arithmetic progressions; a line has some hundred bytes.
MAX_LINE_BYTES = 1 << 20
_HEADER = re.compile(r"txl ledger format=1 first=([1-9]\d{0,18})")
_REMEDY = "Restore it from a copy, or move it away: a new one begins at this step."


class LedgerReader:
    """Reads a ledger as it comes, so that its length takes no memory.

    Args:
        lines: iterable of bytes. The lines with their ends; what has no end, or
            more than `MAX_LINE_BYTES`, is no line.
        where: str. Path of the ledger, for errors.

    Raises:
        DataDamagedError: If it does not begin as a ledger does.
    """

    def __init__(self, lines: Iterable[bytes], where: str) -> None:
        self._lines = iter(lines)
        self._where = where
        self._number = 1
        self._hash = hashlib.sha256()
        self.num_bytes = 0
        """Bytes up to the end of the last line that was read."""
        header = next(self._lines, b"")
        match = _HEADER.fullmatch(_text(header) or "")
        if match is None:
            raise self.damaged("it does not begin as a ledger does")
        self.first_step = int(match.group(1))
        """The first step that is in it."""
        self.last_step = self.first_step - 1
        """The last step that was read."""
        self._take(header)

    @property
    def sha256(self) -> str:
        """SHA-256, in hexadecimal, of the bytes up to the end of the last line."""
        return self._hash.hexdigest()

    def read_until(self, step: int) -> None:
        """Reads the lines up to a step.

        Args:
            step: int. The last step to read.

        Raises:
            DataDamagedError: If the lines are not one for each step.
        """
        while self.last_step < step:
            content = next(self._lines, b"")
            text = _text(content)
            self._number += 1
            if not content:
                raise self.damaged(f"the line of step {self.last_step + 1} is missing")
            try:
                found = LedgerLine.parse(text or "").step
            except ValueError as error:
                shown = ascii(content[:60].decode("ascii", "replace"))
                raise self.damaged(f"not a line of a ledger: {shown}") from error
            if found != self.last_step + 1:
                raise self.damaged(f"of step {found} instead of {self.last_step + 1}")
            self.last_step = found
            self._take(content)

    def check(self, digest: dict[str, Any] | None) -> None:
        """Holds what was read against what a checkpoint of the last step keeps of it.

        Args:
            digest: optional dict, see `StepLedger.digest`. A ledger that begins
                after the checkpoint took the place of one that was lost.

        Raises:
            DataDamagedError: If it is not what was written.
        """
        if digest is None or self.last_step < self.first_step:
            return
        if digest != {"first_step": self.first_step, "sha256": self.sha256}:
            raise DataDamagedError(
                f"The ledger up to step {self.last_step} is not what was written: "
                "a line was altered.",
                where=f"{self._where}, up to line {self._number}",
                remedy=_REMEDY,
            )

    def copied_hash(self) -> "hashlib._Hash":
        """The SHA-256 so far, to go on with."""
        return self._hash.copy()

    def read_rest(self) -> tuple[list[LedgerLine], bool]:
        """Reads on to the first line that is none: a power cut may leave anything behind.

        Returns:
            Tuple of the lines, and whether they end the ledger but for a line
            that was cut short.
        """
        rest: list[LedgerLine] = []
        for content in self._lines:
            text = _text(content)
            if text is None:
                return rest, next(self._lines, None) is None and len(content) < MAX_LINE_BYTES
            try:
                line = LedgerLine.parse(text)
            except ValueError:
                return rest, False
            if line.step != self.last_step + 1 + len(rest):
                return rest, False
            rest.append(line)
        return rest, True

    def damaged(self, what: str) -> DataDamagedError:
        """The error about the line that was read last.

        Args:
            what: str. What is wrong with it.

        Returns:
            The error to raise.
        """
        return DataDamagedError(
            f"The ledger of the run is damaged at line {self._number}: {what}.",
            where=self._where,
            remedy=_REMEDY,
        )

    def _take(self, content: bytes) -> None:
        self._hash.update(content)
        self.num_bytes += len(content)


def _text(content: bytes) -> str | None:
    """The text of a line that has its end."""
    if not content.endswith(b"\n"):
        return None
    return content[:-1].decode("ascii", "replace")
