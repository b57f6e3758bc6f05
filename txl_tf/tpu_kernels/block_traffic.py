"""Bytes that the blocks of a kernel move between the memory and the chip."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

_LANES = 128


@dataclasses.dataclass(frozen=True)
class Block:
    """One argument or result of a kernel.

    `block` is the shape on the chip at a time; `place` maps an index of the grid to the index of
    the needed block.
    """

    shape: tuple[int, ...]
    block: tuple[int, ...]
    dtype: str
    place: Callable[..., tuple[int, ...]]

    @property
    def num_bytes(self) -> int:
        """Bytes of a block, with rows padded to whole registers."""
        item_bytes = 2 if self.dtype == "bfloat16" else np.dtype(self.dtype).itemsize
        columns = math.ceil(self.block[-1] / _LANES) * _LANES
        return math.prod(self.block[:-1]) * columns * item_bytes


def moved_bytes(grid: Sequence[int], blocks: Sequence[Block]) -> int:
    """Counts the bytes that a kernel reads and writes.

    A block is moved whenever the next place of the grid needs another one; the last axis of the
    grid is the innermost. Returning to an earlier result would read it again, which no kernel
    here does.
    """
    total = 0
    for block in blocks:
        places = (block.place(*index) for index in itertools.product(*map(range, grid)))
        total += block.num_bytes * sum(1 for _ in itertools.groupby(places))
    return total
