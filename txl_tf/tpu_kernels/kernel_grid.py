"""Grid of the attention kernels: the blocks they move, and the tiles at each place.

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
import numpy as np
from jax import numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from txl_tf.tpu_kernels.attention_plan import AttentionPlan
from txl_tf.tpu_kernels.attention_tile import Tile

NUM_ROW_SCALARS = 3
"""Scalars of a row before its tiles' scalars: first key, both keys of the hash."""

# libtpu looks for the function of a kernel by this name.
_NAME = "main"
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
