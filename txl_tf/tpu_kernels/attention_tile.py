"""Operations of the attention kernels on one tile of queries and one tile of keys.

`attention_kernels` explains tiles, groups of heads and the table of distances.

Shape letters used in this module: G columns of a group of heads, A queries and C keys of a tile, W
distances of a tile.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from txl_tf.functional import MASKED_SCORE
from txl_tf.stateless_random import DRAWN_BITS, dropout_threshold
from txl_tf.tpu_kernels.attention_plan import AttentionPlan

# Scalars of a row: its first visible key and both keys of the hash. After them comes the first
# visible key of each tile of queries, see `attention_call`.
_NUM_ROW_SCALARS = 3
# The axes over which a product sums if its left or its right matrix is transposed.
LEFT_TRANSPOSED, RIGHT_TRANSPOSED = (0, 0), (1, 1)


class Tile:
    """Operations of one run of a kernel: on a tile of queries and each of its tiles of keys.

    `block` is the number of the tile of queries in its row; an argument `key_block` is the number
    of a tile of keys. `first_keys` are the first visible keys of the queries `(1, 1, 1, A)`, where
    these differ.
    """

    def __init__(self, plan: AttentionPlan, scalars: Any, first_keys: Any = None) -> None:
        self.plan = plan
        self.dtype = jnp.dtype(plan.dtype)
        is_exact = plan.dtype == "float32" and not plan.kernel.rounds_products
        self._precision = jax.lax.Precision.HIGHEST if is_exact else jax.lax.Precision.DEFAULT
        group, self.row, self.block = (pl.program_id(axis) for axis in range(3))
        self._first_head = group * plan.heads_per_group
        offset = self.row * (_NUM_ROW_SCALARS + plan.num_query_blocks)
        self._first_keys = scalars[offset]  # one number, or (A, 1) where queries differ
        if first_keys is not None:
            self._first_keys = self.as_column(first_keys[0, 0])
        self._hash_keys = scalars[offset + 1], scalars[offset + 2]
        first_key = scalars[offset + _NUM_ROW_SCALARS + self.block]
        end = plan.padded_memory_length + (self.block + 1) * plan.block_queries
        # Tiles without a visible key are skipped. `//` would add the handling of signs.
        self.first_of_keys = jax.lax.div(first_key, plan.block_keys)
        self.end_of_keys = jax.lax.div(end + plan.block_keys - 1, plan.block_keys)

    def key_rows(self, key_block: Any) -> Any:
        """Returns the rows of a tile of keys in the keys and values."""
        size = self.plan.block_keys
        return pl.ds(pl.multiple_of(key_block * size, size), size)

    def distance_rows(self, key_block: Any) -> Any:
        """Returns the `W` rows of the table of distances between the queries and a tile of keys."""
        plan = self.plan
        first = plan.padded_segment_length - (self.block + 1) * plan.block_queries
        return pl.ds(pl.multiple_of(first + key_block * plan.block_keys, 16), plan.window)

    def product(self, left: Any, right: Any, axes: tuple[int, int] = (1, 0)) -> Any:
        """Multiplies matrices and sums over one axis of each, in float32."""
        return jax.lax.dot_general(
            left.astype(self.dtype),
            right.astype(self.dtype),
            ((axes[:1], axes[1:]), ((), ())),
            precision=self._precision,
            preferred_element_type=jnp.float32,
        )

    def queries(self, query: Any, bias: Any) -> Any:
        """Adds a bias `(1, G)` to queries `(A, G)` and scales them."""
        return ((query.astype(jnp.float32) + bias) * self.plan.score_scale).astype(self.dtype)

    def zeros(self) -> Any:
        """Returns empty sums, float32 `(A, G)`."""
        return jnp.zeros((self.plan.block_queries, self.plan.group_width), jnp.float32)

    def is_of_head(self, head: int) -> Any:
        """Returns which columns belong to a head, `(1, G)`; `None` if the group has one head.

        A register has 128 columns, so two heads of 64 lie side by side. Slices within a register
        are slow. So a product has all columns of the group, and in one of its factors the columns
        of other heads are 0.
        """
        plan = self.plan
        if plan.heads_per_group == 1:
            return None
        columns = jax.lax.broadcasted_iota(jnp.int32, (1, plan.group_width), 1)
        first = head * plan.head_dim
        return jnp.logical_and(columns >= first, columns < first + plan.head_dim)

    def scores(
        self, content_query: Any, position_query: Any, key: Any, distances: Any, key_block: Any
    ) -> Any:
        """Computes the masked scores `(A, C)` of one head, the sum of all four terms.

        Both queries include their biases, see `queries`. Row `A - 1 - a + c` of the distances
        `(W, G)` belongs to query `a` and key `c`. So row `a` of the scores by distance `(A, W)`
        must move to the left by `A - 1 - a`; then the first `C` columns are scores by key. A roll
        to the right by `W - A + 1 + a` is the same. As `W >= A + C`, the scores that move around
        the end stay outside of these columns.
        """
        plan = self.plan
        of_positions = self.product(position_query, distances, RIGHT_TRANSPOSED)  # [A, W]
        of_positions = self.rolled(of_positions, plan.window - plan.block_queries + 1)
        scores = (
            self.product(content_query, key, RIGHT_TRANSPOSED) + of_positions[:, : plan.block_keys]
        )
        queries, keys = _places(*scores.shape)
        queries = queries + (self.block * plan.block_queries + plan.padded_memory_length)
        keys = keys + key_block * plan.block_keys
        is_seen = jnp.logical_and(keys <= queries, keys >= self._first_keys)
        if plan.farthest is not None:
            is_seen = jnp.logical_and(is_seen, queries - keys <= plan.farthest)
        return jnp.where(is_seen, scores, MASKED_SCORE)

    def gradients_by_distance(self, gradients: Any) -> Any:
        """Returns the gradients of scores by distance `(A, W)`, from those by key `(A, C)`.

        `scores` moved row `a` to the left by `A - 1 - a`, so it moves back to the right here. But a
        roll moves each row farther than the row above. So the rows of the result are in reverse
        order: the last query comes first. The queries by which the result is multiplied must be in
        reverse order too.
        """
        plan = self.plan
        rows = self.reversed_rows(gradients.astype(self.dtype))
        zeros = jnp.zeros((plan.block_queries, plan.window - plan.block_keys), jnp.float32)
        return self.rolled(jnp.concatenate([rows, zeros], axis=1), 0)

    def rolled(self, values: Any, shift: int) -> Any:
        """Moves row `a` of float32 `(A, W)` by `shift + a` to the right, around the end."""
        return pltpu.roll(values, shift, 1, stride=1, stride_axis=0)

    def reversed_rows(self, values: Any) -> Any:
        """Reverses the rows of `(A, ...)` by a product: kernels have no operation for it."""
        rows, columns = _places(values.shape[0], values.shape[0])
        is_opposite = rows + columns == values.shape[0] - 1
        turning = jnp.where(is_opposite, 1.0, 0.0).astype(self.dtype)
        if values.dtype == self.dtype:
            return self.product(turning, values)
        # A product for each half of the float32 numbers, instead of six products.
        high = values.astype(self.dtype)
        low = values - high.astype(jnp.float32)
        return self.product(turning, high) + self.product(turning, low)

    def as_column(self, row: Any) -> Any:
        """Turns `(1, A)` into `(A, 1)`."""
        rows, columns = _places(row.shape[1], row.shape[1])
        return jnp.sum(
            jnp.where(rows == columns, row, jnp.zeros((), row.dtype)), axis=1, keepdims=True
        )

    def as_row(self, column: Any) -> Any:
        """Turns `(A, 1)` into `(1, A)`."""
        rows, columns = _places(column.shape[0], column.shape[0])
        return jnp.sum(jnp.where(rows == columns, column, 0.0), axis=0, keepdims=True)

    def dropped(self, values: Any, head: int, key_block: Any) -> Any:
        """Applies the dropout of probabilities to float32 `(A, C)` of a head of the group.

        The mask is the hash of `stateless_random.random_bits` over the indices of queries and keys.
        These do not count the padding, so a mask does not depend on the sizes of tiles.
        """
        plan = self.plan
        if plan.dropout == 0.0:
            return values
        queries, keys = _places(*values.shape)
        first_query = (self._first_head + head) * plan.segment_length
        first_query = first_query + self.block * plan.block_queries
        first_key = key_block * plan.block_keys - (plan.padded_memory_length - plan.memory_length)
        places = (queries + first_query) * plan.key_length + (keys + first_key)
        bits = _mix(_mix(places + self._hash_keys[0]) ^ self._hash_keys[1])
        draws = jax.lax.shift_right_logical(bits, jnp.int32(32 - DRAWN_BITS))
        is_kept = draws >= dropout_threshold(plan.dropout)
        return jnp.where(is_kept, values * (1.0 / (1.0 - plan.dropout)), 0.0)


def _places(num_rows: int, num_columns: int) -> tuple[Any, Any]:
    """Returns the row and the column index of every element."""
    return tuple(
        jax.lax.broadcasted_iota(jnp.int32, (num_rows, num_columns), axis) for axis in (0, 1)
    )


def _mix(bits: Any) -> Any:
    """Mixes bits like `stateless_random.mixed`; int32 wraps around like uint32."""

    def fold(bits: Any, places: int) -> Any:
        return bits ^ jax.lax.shift_right_logical(bits, jnp.int32(places))

    bits = fold(bits, 16) * jnp.int32(0x7FEB352D)
    bits = fold(bits, 15) * jnp.int32(0x846CA68B - 2**32)
    return fold(bits, 16)


def only_head(is_of_head: Any, values: Any) -> Any:
    """Returns values `(A, G)` with 0 in the columns of other heads, see `Tile.is_of_head`."""
    return values if is_of_head is None else jnp.where(is_of_head, values, jnp.zeros_like(values))


def merge_heads(is_of_head: Any, values: Any, others: Any) -> Any:
    """Returns `values` in the columns of a head, and `others` in the columns of other heads."""
    return values if is_of_head is None else jnp.where(is_of_head, values, others)
