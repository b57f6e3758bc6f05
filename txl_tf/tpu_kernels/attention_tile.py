"""Arithmetic of one tile of relative attention, on values in the memory of the chip.

Shape letters used in this module: A queries and C keys of a tile, W distances that the tile
reads, G columns of a group of heads.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from txl_tf.functional import MASKED_SCORE
from txl_tf.hashed_bits import DRAWN_BITS, dropout_threshold
from txl_tf.tpu_kernels.attention_plan import AttentionPlan

_NOT_CONTRACTED = (((1,), (1,)), ((), ()))
_OVER_ROWS = (((0,), (0,)), ((), ()))


class Tile:
    """Operations on the tiles of one row and group of heads."""

    def __init__(self, plan: AttentionPlan) -> None:
        self._plan = plan
        self._scale = plan.head_dim**-0.5
        is_exact = plan.dtype == "float32" and not plan.rounds_products
        self._precision = jax.lax.Precision.HIGHEST if is_exact else jax.lax.Precision.DEFAULT
        self.dtype = jnp.dtype(plan.dtype)

    def product(self, left: Any, right: Any) -> Any:
        """Multiplies `(A, C)` by `(C, G)`; sums are float32, as in the next two methods."""
        return self._dot(left, right, (((1,), (0,)), ((), ())))

    def product_of_rows(self, left: Any, right: Any) -> Any:
        """Multiplies `(A, G)` by the transpose of `(C, G)`."""
        return self._dot(left, right, _NOT_CONTRACTED)

    def product_over_rows(self, left: Any, right: Any) -> Any:
        """Multiplies the transpose of `(A, C)` by `(A, G)`."""
        return self._dot(left, right, _OVER_ROWS)

    def _dot(self, left: Any, right: Any, dimensions: Any) -> Any:
        return jax.lax.dot_general(
            left.astype(self.dtype),
            right.astype(self.dtype),
            dimensions,
            precision=self._precision,
            preferred_element_type=jnp.float32,
        )

    def queries(self, query: Any, bias: Any) -> Any:
        """Adds a bias `(1, G)` to queries `(A, G)` and divides by `sqrt(H)`."""
        return ((query.astype(jnp.float32) + bias) * self._scale).astype(self.dtype)

    def gradient_of_query(self, gradient: Any) -> Any:
        """Returns the gradient of the input of `queries`."""
        return gradient * self._scale

    def is_of_head(self, head: int) -> Any:
        """Selects the columns of a head: `(1, G)`, or `None` if the group has one head."""
        plan = self._plan
        if plan.heads_per_group == 1:
            return None
        columns = jax.lax.broadcasted_iota(jnp.int32, (1, plan.group_width), 1)
        first = head * plan.head_dim
        return jnp.logical_and(columns >= first, columns < first + plan.head_dim)

    def scores(self, content_query: Any, position_query: Any, key: Any, distances: Any) -> Any:
        """Computes scores `(A, C)` of all four terms.

        Row `A - 1 - a + c` of the distances `(W, G)` belongs to query `a` and key `c`.
        """
        plan = self._plan
        of_positions = self.product_of_rows(position_query, distances)  # [A, W]
        shift = plan.window - plan.block_queries + 1
        of_positions = self.rolled(of_positions, shift)[:, : plan.block_keys]
        return self.product_of_rows(content_query, key) + of_positions

    def gradients_by_distance(self, gradients: Any) -> Any:
        """Moves gradients `(A, C)` of keys back to distances `(A, W)`.

        The last query comes first, because no chip moves rows to the left.
        """
        plan = self._plan
        turned = self.reversed_rows(gradients.astype(self.dtype))
        width = plan.window - plan.block_keys
        zeros = jnp.zeros((plan.block_queries, width), jnp.float32)
        return self.rolled(jnp.concatenate([turned, zeros], axis=1), 0)

    def rolled(self, values: Any, shift: int) -> Any:
        """Moves row `a` of float32 `(A, W)` by `shift + a` to the right, around the end."""
        if self._plan.has_strided_rolls:
            return pltpu.roll(values, shift, 1, stride=1, stride_axis=0)
        values = pltpu.roll(values, shift, 1) if shift else values
        rows = jax.lax.broadcasted_iota(jnp.int32, (values.shape[0], 1), 0)
        step = 1
        while step < values.shape[0]:
            is_moved = jnp.bitwise_and(rows, step) != 0
            values = jnp.where(is_moved, pltpu.roll(values, step, 1), values)
            step *= 2
        return values

    def reversed_rows(self, values: Any) -> Any:
        """Reverses the rows of `(A, ...)` by a product: kernels have no other way."""
        rows, columns = self._places(values.shape[0], values.shape[0])
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
        rows, columns = self._places(row.shape[1], row.shape[1])
        zero = jnp.zeros((), row.dtype)
        return jnp.sum(jnp.where(rows == columns, row, zero), axis=1, keepdims=True)

    def as_row(self, column: Any) -> Any:
        """Turns `(A, 1)` into `(1, A)`."""
        rows, columns = self._places(column.shape[0], column.shape[0])
        return jnp.sum(jnp.where(rows == columns, column, 0.0), axis=0, keepdims=True)

    def masked(self, scores: Any, query_block: Any, key_block: Any, first_keys: Any) -> Any:
        """Masks float32 scores `(A, C)` of keys that a query must not see.

        `first_keys` is an int32 scalar or `(A, 1)`, the first key that a query may see.
        """
        plan = self._plan
        queries, keys = self._places(*scores.shape)
        queries = queries + (query_block * plan.block_queries + plan.padded_memory_length)
        keys = keys + key_block * plan.block_keys
        is_seen = jnp.logical_and(keys <= queries, keys >= first_keys)
        if plan.farthest is not None:
            is_seen = jnp.logical_and(is_seen, queries - keys <= plan.farthest)
        return jnp.where(is_seen, scores, MASKED_SCORE)

    def dropped(
        self, values: Any, hash_keys: tuple[Any, Any], head: Any, query_block: Any, key_block: Any
    ) -> Any:
        """Applies the dropout of probabilities to float32 `(A, C)`.

        The mask is the hash of `hashed_bits.random_bits` over the indices of real queries and
        keys, without padding. `head` counts over all groups.
        """
        plan = self._plan
        if plan.dropout == 0.0:
            return values
        queries, keys = self._places(*values.shape)
        first_query = head * plan.segment_length + query_block * plan.block_queries
        first_key = key_block * plan.block_keys - (plan.padded_memory_length - plan.memory_length)
        places = (queries + first_query) * plan.key_length + (keys + first_key)
        bits = _mixed(_mixed(places + hash_keys[0]) ^ hash_keys[1])
        drawn = jax.lax.shift_right_logical(bits, jnp.int32(32 - DRAWN_BITS))
        is_kept = drawn >= dropout_threshold(plan.dropout)
        return jnp.where(is_kept, values * (1.0 / (1.0 - plan.dropout)), 0.0)

    def _places(self, num_rows: int, num_columns: int) -> tuple[Any, Any]:
        """Returns the row and the column index of every element."""
        shape = num_rows, num_columns
        rows, columns = (jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
        return rows, columns


def _mixed(bits: Any) -> Any:
    """Mixes like `hashed_bits.mixed`; int32 wraps around like uint32."""

    def folded(bits: Any, places: int) -> Any:
        return bits ^ jax.lax.shift_right_logical(bits, jnp.int32(places))

    bits = folded(bits, 16) * jnp.int32(0x7FEB352D)
    bits = folded(bits, 15) * jnp.int32(0x846CA68B - 2**32)
    return folded(bits, 16)
