"""The keys and values of the newest tokens, beside a memory that stays.

Shape letters used in this module: R rows, N heads, H head width, C capacity,
L layers.
"""

from typing import Any, NamedTuple

from keras import ops


class RecentMemory(NamedTuple):
    """What was read since memory was last brought up to date.

    Moving all of memory by one place for every token costs more than all
    arithmetic on it. New tokens are put here instead, from the left, and go to
    memory together when this is full.

    Attributes:
        keys: tuple of `L` float tensors `(R, N, H, C)`.
        values: tuple of `L` float tensors `(R, N, C, H)`.
        length: int32 scalar. How many of the `C` places are filled, in all rows.
    """

    keys: tuple[Any, ...]
    values: tuple[Any, ...]
    length: Any

    def select(self, rows: Any) -> "RecentMemory":
        """Puts rows in another order, some of them more than once.

        Args:
            rows: int32 tensor `(R,)`. The row that each row is to be.

        Returns:
            A `RecentMemory`.
        """
        keys = tuple(ops.take(each, rows, axis=0) for each in self.keys)
        values = tuple(ops.take(each, rows, axis=0) for each in self.values)
        return RecentMemory(keys, values, self.length)
