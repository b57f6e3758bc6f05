"""Tiles of the attention kernels: their arithmetic, and the grid of blocks that holds them.

Shape letters used in this module: B rows, T segment length, K key length with padding, N heads,
H head width, G columns of a group of heads, P rows of the table of distances with padding,
A queries and C keys of a tile, W distances of a tile.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from txl_tf.functional import MASKED_SCORE
from txl_tf.stateless_random import DRAWN_BITS, dropout_threshold
from txl_tf.tpu_kernels.attention_plan import LANES, AttentionPlan

NUM_ROW_SCALARS = 3
"""Scalars of a row before its tiles' scalars: first key, both keys of the hash."""

# libtpu looks for the function of a kernel by this name.
_NAME = "main"
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

        The mask is the hash of `stateless_random.random_bits` over the indices of real queries and
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
    """Mixes like `stateless_random.mixed`; int32 wraps around like uint32."""

    def folded(bits: Any, places: int) -> Any:
        return bits ^ jax.lax.shift_right_logical(bits, jnp.int32(places))

    bits = folded(bits, 16) * jnp.int32(0x7FEB352D)
    bits = folded(bits, 15) * jnp.int32(0x846CA68B - 2**32)
    return folded(bits, 16)


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
        columns = math.ceil(self.block[-1] / LANES) * LANES
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


class KernelBlocks:
    """Blocks that the kernels move between memory and chip.

    The grid is groups of heads, rows, tiles of queries. A group's distances are loaded once, a
    row's keys and values once for each group, queries once.
    """

    def __init__(self, plan: AttentionPlan) -> None:
        self._plan = plan
        self._grid = plan.num_groups, plan.num_rows, plan.num_query_blocks
        rows, width, columns = plan.num_rows, plan.group_width, plan.num_heads * plan.head_dim
        tile, num_tiles = plan.block_queries, plan.num_query_blocks
        heads, groups = plan.heads_per_group, plan.num_groups
        keys, table, dtype = plan.padded_key_length, plan.table_length, plan.dtype
        self.queries = Block(
            (rows, plan.padded_segment_length, columns),
            (1, tile, width),
            dtype,
            lambda n, b, i, *_: (b, i, n),
        )
        self.keys = self.of_keys(keys)
        self.distances = Block((table, columns), (table, width), dtype, lambda n, b, i, *_: (0, n))
        self.biases = Block((2, columns), (2, width), "float32", lambda n, b, i, *_: (0, n))
        self.log_sums = Block(
            (rows, num_tiles, groups, heads, tile),
            (1, 1, 1, heads, tile),
            "float32",
            lambda n, b, i, *_: (b, i, n, 0, 0),
        )
        first_keys = Block(
            (rows, num_tiles, 1, tile), (1, 1, 1, tile), "int32", lambda n, b, i, *_: (b, i, 0, 0)
        )
        self.inputs = [self.queries, self.keys, self.keys, self.distances, self.biases]
        self.inputs += [first_keys] if plan.has_query_starts else []

    def of_keys(self, length: int) -> Block:
        """Returns the block of `length` keys or values of a row and group of heads."""
        plan = self._plan
        return Block(
            (plan.num_rows, length, plan.num_heads * plan.head_dim),
            (1, length, plan.group_width),
            plan.dtype,
            lambda n, b, i, *_: (b, 0, n),
        )

    def call(
        self,
        kernel: Callable[..., None],
        inputs: list[Block],
        outputs: list[Block],
        scratch: list[Any],
        flops: int,
        is_interpreted: bool,
    ) -> Callable[..., Any]:
        """Makes a function of arrays that runs a kernel over the grid."""
        plan = self._plan
        return pl.pallas_call(
            kernel,
            name=_NAME,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=self._grid,
                in_specs=[pl.BlockSpec(each.block, each.place) for each in inputs],
                out_specs=[pl.BlockSpec(each.block, each.place) for each in outputs],
                scratch_shapes=scratch,
            ),
            out_shape=[jax.ShapeDtypeStruct(each.shape, each.dtype) for each in outputs],
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "arbitrary", "arbitrary"),
                vmem_limit_bytes=plan.vmem_limit_bytes,
            ),
            cost_estimate=pl.CostEstimate(
                flops=flops,
                transcendentals=plan.num_exponentials,
                bytes_accessed=moved_bytes(self._grid, [*inputs, *outputs]),
            ),
            interpret=is_interpreted,
        )


class KernelProgram:
    """State of a kernel at one place of its grid."""

    def __init__(self, plan: AttentionPlan, scalars: Any, first_keys: Any) -> None:
        self.plan = plan
        self.tile = Tile(plan)
        self.group, row, self.block = (pl.program_id(axis) for axis in range(3))
        offset = row * (NUM_ROW_SCALARS + plan.num_query_blocks)
        self.first_keys = scalars[offset]
        if first_keys is not None:
            self.first_keys = self.tile.as_column(first_keys[0, 0])
        self.hash_keys = scalars[offset + 1], scalars[offset + 2]
        first_key = scalars[offset + NUM_ROW_SCALARS + self.block]
        end = plan.padded_memory_length + (self.block + 1) * plan.block_queries
        # Skip tiles without a visible key. `//` would add the handling of signs.
        self.first_tile = jax.lax.div(first_key, plan.block_keys)
        self.end_tile = jax.lax.div(end + plan.block_keys - 1, plan.block_keys)
        self.head: Any = 0

    def at_head(self, head: int) -> None:
        """Selects a head of the group."""
        self.head = self.group * self.plan.heads_per_group + head

    def masked(self, scores: Any, key_block: Any) -> Any:
        return self.tile.masked(scores, self.block, key_block, self.first_keys)

    def dropped(self, values: Any, key_block: Any) -> Any:
        return self.tile.dropped(values, self.hash_keys, self.head, self.block, key_block)

    def key_rows(self, key_block: Any) -> Any:
        """Returns the rows of a tile in keys and values."""
        size = self.plan.block_keys
        return pl.ds(pl.multiple_of(key_block * size, size), size)

    def distance_rows(self, key_block: Any) -> Any:
        """Returns the rows of a tile in the table of distances."""
        plan = self.plan
        first = plan.padded_segment_length - (self.block + 1) * plan.block_queries
        return pl.ds(pl.multiple_of(first + key_block * plan.block_keys, 16), plan.window)


def only(is_of_head: Any, values: Any) -> Any:
    """Sets columns of other heads to 0."""
    return values if is_of_head is None else jnp.where(is_of_head, values, jnp.zeros_like(values))


def merged(is_of_head: Any, values: Any, others: Any) -> Any:
    """Replaces columns of other heads with other values."""
    return values if is_of_head is None else jnp.where(is_of_head, values, others)


def first_keys_of_tiles(plan: AttentionPlan, first_keys: Any) -> Any:
    """Spreads the first visible keys over tiles of queries: int32 `(B, T / A, 1, A)`, padded.

    They are int32 `(B,)`, or `(B, T)` where queries have their own starts, and count the padding
    of memory.
    """
    if plan.has_query_starts:
        # Padding queries see themselves and the keys of the last query.
        edges = [(0, 0), (0, plan.padded_segment_length - plan.segment_length)]
        of_queries = jnp.pad(first_keys, edges, mode="edge")
    else:
        of_queries = jnp.broadcast_to(
            first_keys[:, None], (plan.num_rows, plan.padded_segment_length)
        )
    tiles = plan.num_rows, plan.num_query_blocks, 1, plan.block_queries
    return jnp.reshape(of_queries, tiles)


def row_scalars(plan: AttentionPlan, first_keys: Any, of_tiles: Any, hash_keys: Any) -> Any:
    """Concatenates the scalars of all rows for `KernelProgram`, int32 `(B * (3 + T / A))`.

    A row has the first key, both keys of the hash `(2, B)` and, for each tile of queries, the
    first key that any of them sees.
    """
    of_tiles = of_tiles[..., 0, 0]
    if plan.farthest is not None:
        queries = jnp.arange(plan.num_query_blocks) * plan.block_queries
        nearest = queries + (plan.padded_memory_length - plan.farthest)
        of_tiles = jnp.maximum(of_tiles, nearest.astype(jnp.int32)[None])
    first = first_keys[:, :1] if plan.has_query_starts else first_keys[:, None]
    scalars = jnp.concatenate([first, jnp.transpose(hash_keys), of_tiles], axis=1)
    return jnp.reshape(scalars, [-1])
