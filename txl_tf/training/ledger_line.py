"""One line of a run's ledger: what a step read and what came out."""

import dataclasses
import re
from typing import Self

import numpy as np

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
    """What one training step read and what came out, to the last bit.

    As text: `step=12 rows=0+4096*22 checksum=1a2b3c4d loss=0x1.8p+1
    norm=0x1.2p-3 status=applied`. Two lines are equal if their texts are, so
    one that is not a number is equal to itself.

    Args:
        step: int. The step, from 1.
        positions: integers `[B]`, the first token of every row; or what
            `describe_positions` made of them, which is kept.
        checksum: int, 32 bits without sign. Of what was read.
        loss: float. Nats per token; rounded to float32.
        gradient_norm: float. Rounded to float32.
        status: str. What became of the step, in small letters: `applied`.

    Raises:
        ValueError: If a value cannot be written into a line.
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
        """Reads a line.

        Args:
            text: str. The line, without its end.

        Returns:
            The `LedgerLine` of which it is the text.

        Raises:
            ValueError: If it is no such text.
        """
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
    """Writes the first tokens of rows as arithmetic progressions.

    Args:
        positions: integers `[B]`, none negative.

    Returns:
        Runs `first+stride*count`, or `first` alone, joined by commas.

    Raises:
        ValueError: If it is no such array.
    """
    array = np.asarray(positions)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu" or array.min() < 0:
        raise ValueError(
            "`positions` must be a vector of token positions. "
            f"Received: shape={array.shape}, dtype={array.dtype}"
        )
    values = array.astype(np.int64)
    strides = np.diff(values)
    # Places whose stride differs from the one before: there a run ends.
    ends = [*(np.flatnonzero(np.diff(strides)) + 1).tolist(), len(strides)]
    runs, start = [], 0
    for end in ends:
        # The stride between two runs is of neither.
        if end > start:
            runs.append(f"{values[start]}{strides[start]:+d}*{end - start + 1}")
            start = end + 1
    if start < len(values):
        runs.append(f"{values[start]}")
    return ",".join(runs)


def parse_positions(text: str) -> np.ndarray:
    """Reads what `describe_positions` wrote.

    Args:
        text: str. The runs.

    Returns:
        int64 `[B]`.

    Raises:
        ValueError: If it is no such text.
    """
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
    """`float.hex` without the zeros at the end, of which float32 leaves many."""
    return re.sub(r"\.?0*p", "p", value.hex())
