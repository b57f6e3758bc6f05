"""Lines of the ledger: their format, and a reader of whole ledgers."""

import dataclasses
import hashlib
import re
from collections.abc import Iterable
from typing import Any, Self

import numpy as np

from txl_tf.errors import DataDamagedError

_RUN = re.compile(r"(\d+)(?:([+-]\d+)\*(\d+))?")
_HEX_FLOAT = r"-?0x[01](?:\.[0-9a-f]+)?p[+-]\d+|-?inf|nan"
_LINE = re.compile(
    rf"step=(\d+) rows=([\d+*,-]+) checksum=([0-9a-f]{{8}}) "
    rf"loss=({_HEX_FLOAT}) norm=({_HEX_FLOAT}) status=([a-z][a-z_-]*)"
)
_MAX_ROWS = 1 << 24
_STATUS = re.compile(r"[a-z][a-z_-]*")


@dataclasses.dataclass(frozen=True, eq=False)
class LedgerLine:
    """Line of the ledger: tokens read, loss and gradient norm, exact to the last bit.

    As text: `step=12 rows=0+4096*22 checksum=1a2b3c4d loss=0x1.8p+1 norm=0x1.2p-3 status=applied`.
    Two lines are equal if their texts are, so NaN equals NaN. `positions` are the first tokens of
    all rows, integers `[B]` or the text of `describe_positions`. `checksum` has 32 bits without
    sign. The loss, in nats per token, and the norm are rounded to float32. Raises ValueError if a
    value cannot be written into a line.
    """

    step: int
    positions: str | np.ndarray
    checksum: int
    loss: float
    gradient_norm: float
    status: str

    def __post_init__(self) -> None:
        if not isinstance(self.positions, str):
            object.__setattr__(self, "positions", describe_positions(self.positions))
        if self.step < 1:
            raise ValueError(f"`step` must be at least 1. Received: step={self.step}")
        if not 0 <= self.checksum < 2**32:
            raise ValueError(f"`checksum` must have 32 bits. Received: checksum={self.checksum}")
        if not _STATUS.fullmatch(self.status):
            raise ValueError(
                f"`status` must be a word in small letters. Received: status={self.status!r}"
            )
        if not all(_RUN.fullmatch(run) for run in self.positions.split(",")):
            raise ValueError(
                "`positions` must be what `describe_positions` returns. "
                f"Received: positions={self.positions!r}"
            )
        for name in ("loss", "gradient_norm"):
            object.__setattr__(self, name, float(np.float32(getattr(self, name))))

    def __str__(self) -> str:
        return (
            f"step={self.step} rows={self.positions} checksum={self.checksum:08x} "
            f"loss={_hex(self.loss)} norm={_hex(self.gradient_norm)} status={self.status}"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LedgerLine) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses a line without its end; raises ValueError if it is invalid."""
        match = _LINE.fullmatch(text)
        if match is None:
            raise ValueError(f"`text` must be a line of a ledger. Received: {text[:200]!r}")
        step, positions, checksum, loss, norm, status = match.groups()
        return cls(
            step=int(step),
            positions=positions,
            checksum=int(checksum, 16),
            loss=float.fromhex(loss),
            gradient_norm=float.fromhex(norm),
            status=status,
        )


def describe_positions(positions: np.ndarray) -> str:
    """Encodes positions, integers `[B]` and not negative, as arithmetic progressions.

    The text has runs `first+stride*count`, or `first` alone, joined by commas.
    """
    array = np.asarray(positions)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu" or array.min() < 0:
        raise ValueError(
            "`positions` must be a vector of token positions. "
            f"Received: shape={array.shape}, dtype={array.dtype}"
        )
    values = array.astype(np.int64)
    strides = np.diff(values)
    # A run ends where the stride changes.
    ends = [*(np.flatnonzero(np.diff(strides)) + 1).tolist(), len(strides)]
    runs, start = [], 0
    for end in ends:
        # The stride between two runs belongs to neither.
        if end > start:
            runs.append(f"{values[start]}{strides[start]:+d}*{end - start + 1}")
            start = end + 1
    if start < len(values):
        runs.append(f"{values[start]}")
    return ",".join(runs)


def parse_positions(text: str) -> np.ndarray:
    """Parses the text of `describe_positions` to int64 `[B]`; raises ValueError if invalid."""
    parts: list[np.ndarray] = []
    num_rows = 0
    for run in text.split(","):
        match = _RUN.fullmatch(run)
        if match is None:
            raise ValueError(f"`text` must be runs of positions. Received: {text[:200]!r}")
        first, stride, count = (int(group or 0) for group in match.groups())
        num_rows += max(count, 1)
        last = first + stride * max(count - 1, 0)
        if num_rows > _MAX_ROWS or not 0 <= last < 2**63 or not first < 2**63:
            raise ValueError(
                f"`text` must be positions of at most {_MAX_ROWS} rows. Received: {text[:200]!r}"
            )
        parts.append(first + stride * np.arange(count if match.group(3) else 1, dtype=np.int64))
    return np.concatenate(parts)


def _hex(value: float) -> str:
    """Returns `float.hex` without trailing zeros; a float32 has many."""
    return re.sub(r"\.?0*p", "p", value.hex())


# The rows of a step are a few arithmetic progressions; a line has some hundred bytes.
MAX_LINE_BYTES = 1 << 20
_HEADER = re.compile(r"txl ledger format=1 first=([1-9]\d{0,18})")
_REMEDY = "Restore it from a copy, or move it away: a new one begins at this step."


class LedgerReader:
    """Streaming reader of a ledger; its memory does not grow with the length.

    Lines include their ends; those without an end or longer than `MAX_LINE_BYTES` are invalid.
    Raises DataDamagedError if the header is invalid.
    """

    def __init__(self, lines: Iterable[bytes], where: str) -> None:
        self._lines = iter(lines)
        self._where = where
        self._number = 1
        self._hash = hashlib.sha256()
        self.num_bytes = 0
        """Bytes up to the end of the last line read."""
        header = next(self._lines, b"")
        match = _HEADER.fullmatch(_text(header) or "")
        if match is None:
            raise self.damaged("it does not begin as a ledger does")
        self.first_step = int(match.group(1))
        """First step in the ledger."""
        self.last_step = self.first_step - 1
        """Last step read."""
        self._take(header)

    @property
    def sha256(self) -> str:
        """Hexadecimal SHA-256 of the bytes up to the end of the last line read."""
        return self._hash.hexdigest()

    def read_until(self, step: int) -> None:
        """Reads the lines up to and including a step.

        Raises DataDamagedError unless there is one line for each step.
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
        """Compares the lines read with the `StepLedger.digest` of a checkpoint of the last step.

        A ledger that begins after the checkpoint replaces a lost one. Raises DataDamagedError if
        the lines were altered.
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
        """Returns a copy of the SHA-256 state, which can be continued."""
        return self._hash.copy()

    def read_rest(self) -> tuple[list[LedgerLine], bool]:
        """Reads on to the first invalid line: a power cut may leave anything behind.

        Returns the lines, and True if at most one incomplete line follows them.
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
        """Creates the error about the last line read."""
        return DataDamagedError(
            f"The ledger of the run is damaged at line {self._number}: {what}.",
            where=self._where,
            remedy=_REMEDY,
        )

    def _take(self, content: bytes) -> None:
        self._hash.update(content)
        self.num_bytes += len(content)


def _text(content: bytes) -> str | None:
    """Returns the text of a line; `None` if its end is missing."""
    if not content.endswith(b"\n"):
        return None
    return content[:-1].decode("ascii", "replace")
