"""Memory as keys and values.

Shape letters used in this module:
  B rows of memory, R rows, M memory length, C capacity for recent tokens,
  D hidden width, N heads, H head width, L layers.
"""

from typing import Any, NamedTuple

from keras import ops

from txl_tf.models.memory import short_repr


class KeyValueMemory(NamedTuple):
    """Keys and values that the next segment may attend to.

    While the weights do not change, attention layers would compute the same keys and values from
    a `Memory` in every segment. Each row fills its memory from the right.

    Attributes:
        keys: tuple of `L` float tensors `(B, N, H, M)`, as products read them.
        values: tuple of `L` float tensors `(B, N, M, H)`.
        valid_length: int32 tensor `(B,)`, between 0 and `M`.
    """

    keys: tuple[Any, ...]
    values: tuple[Any, ...]
    valid_length: Any

    KEYS_AXIS = 3
    VALUES_AXIS = 2

    __repr__ = short_repr

    @property
    def memory_length(self) -> int:
        """Memory length `M`."""
        return self.values[0].shape[self.VALUES_AXIS]

    @staticmethod
    def arranged(keys: Any, values: Any) -> tuple[Any, Any]:
        """Arranges keys and values `(B, M, N, H)` of a layer in the layout of this memory."""
        return ops.transpose(keys, [0, 2, 3, 1]), ops.transpose(values, [0, 2, 1, 3])

    @staticmethod
    def by_token(keys: Any, values: Any) -> tuple[Any, Any]:
        """Arranges keys and values of this memory as `(B, M, N, H)`."""
        return ops.transpose(keys, [0, 3, 1, 2]), ops.transpose(values, [0, 2, 1, 3])

    def forget(self, rows: Any) -> "KeyValueMemory":
        """Returns the memory with valid length 0 where `rows`, bool `(B,)`, is true."""
        return self._replace(valid_length=ops.where(rows, 0, self.valid_length))


class PerHeadMemory(KeyValueMemory):
    """A `KeyValueMemory` for reading head by head, with keys `(B, N, M, H)`."""

    __slots__ = ()
    KEYS_AXIS = 2

    @staticmethod
    def arranged(keys: Any, values: Any) -> tuple[Any, Any]:
        return ops.transpose(keys, [0, 2, 1, 3]), ops.transpose(values, [0, 2, 1, 3])

    @staticmethod
    def by_token(keys: Any, values: Any) -> tuple[Any, Any]:
        return PerHeadMemory.arranged(keys, values)


class SideBySideMemory(KeyValueMemory):
    """A `KeyValueMemory` in the layout of projections and of the kernel for TPUs.

    Keys and values are `(B, P, N * H)`, the heads of a token side by side, so neither writing nor
    reading transposes them. `P` may exceed the number of remembered tokens: the positions in
    front are unused, but moving whole tiles is faster.
    """

    __slots__ = ()
    KEYS_AXIS = VALUES_AXIS = 1

    @staticmethod
    def arranged(keys: Any, values: Any) -> tuple[Any, Any]:
        *rows_and_places, num_heads, width = keys.shape
        shape = [*(-1 if each is None else each for each in rows_and_places), num_heads * width]
        return ops.reshape(keys, shape), ops.reshape(values, shape)

    @staticmethod
    def by_token(keys: Any, values: Any) -> tuple[Any, Any]:
        raise ValueError(
            "Memory of the kernel for TPUs stays with engines that have it, as it does not say "
            f"how many of its places are for use. Received: keys of shape {tuple(keys.shape)}"
        )


class RecentTokens(NamedTuple):
    """Keys and values of the newest tokens, beside a memory that stays unchanged.

    Moving all of memory by one place for every token would cost more than all arithmetic on it.
    New tokens enter here from the left, and move to memory together once this is full. Keys are
    `(R, N, H, C)`, values `(R, N, C, H)`; in all rows the first `length` of the `C` places are
    filled.
    """

    keys: tuple[Any, ...]
    values: tuple[Any, ...]
    length: Any


class FoldedDistances(NamedTuple):
    """Position projections applied to the query, which is cheaper for one or two rows.

    The product of a query with the projected sinusoids equals the product of the projected query
    with the sinusoids. For one row that reads one table instead of the keys of all distances of
    all layers. Projections are `(N, H, D)`; column `j` of the sinusoids `(D, M + 1)` belongs to
    the distance `M - j`.
    """

    projections: tuple[Any, ...]
    sinusoids: Any


class StepConstants(NamedTuple):
    """Values for reading single tokens, computed once from the weights.

    `kernels` are `L` tensors `(D, 3 * N * H)`, from inputs to query, key and value. `distances`
    are a `FoldedDistances` or `L` `DistanceKeys`.
    """

    kernels: tuple[Any, ...]
    distances: Any
