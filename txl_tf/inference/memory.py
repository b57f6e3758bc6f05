"""Memory as keys and values.

Shape letters used in this module:
  B rows of memory, R rows, M memory length, C capacity for recent tokens,
  D hidden width, N heads, H head width, L layers.
"""

from typing import Any, NamedTuple

from keras import ops


class KeyValueMemory(NamedTuple):
    """The keys and values that the next segment may attend to.

    As long as the weights do not change, they are what the attention layers
    would compute of a `Memory` again for every segment. Each row fills its
    memory from the right.

    Attributes:
        keys: tuple of `L` float tensors `(B, N, H, M)`, as products read them.
        values: tuple of `L` float tensors `(B, N, M, H)`.
        valid_length: int32 tensor `(B,)`, between 0 and `M`.
    """

    keys: tuple[Any, ...]
    values: tuple[Any, ...]
    valid_length: Any

    @property
    def memory_length(self) -> int:
        """`M`."""
        return self.values[0].shape[2]

    def forget(self, rows: Any) -> "KeyValueMemory":
        """Returns it with valid length 0 where `rows`, bool `(B,)`, is true."""
        return self._replace(valid_length=ops.where(rows, 0, self.valid_length))


class PerHeadMemory(KeyValueMemory):
    """A `KeyValueMemory` for reading head by head: its keys are `(B, N, M, H)`."""

    __slots__ = ()


class RecentTokens(NamedTuple):
    """The keys and values of the newest tokens, beside a memory that stays.

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


class FoldedDistances(NamedTuple):
    """Position projections, applied to the query; cheaper for one or two rows.

    The product of a query with the projected sinusoids is the product of the
    query, projected, with the sinusoids. For one row that reads one table
    instead of the keys of all distances of all layers.

    Attributes:
        projections: tuple of `L` float tensors `(N, H, D)`.
        sinusoids: float tensor `(D, M + 1)`; column `j` belongs to the distance
            `M - j`.
    """

    projections: tuple[Any, ...]
    sinusoids: Any


class StepConstants(NamedTuple):
    """Values that reading single tokens needs, computed once from the weights.

    Attributes:
        kernels: tuple of `L` float tensors `(D, 3 * N * H)`, from inputs to
            query, key and value.
        distances: `FoldedDistances`, or a tuple of `L` `DistanceKeys`.
    """

    kernels: tuple[Any, ...]
    distances: Any
