"""Sizes of the kernel that reads a segment and writes the next memory.

Shape letters used in this module: T segment length, P places of memory, K = P + T key length, S
keys of the segment with padding, G width of a group of heads, A queries and C keys of a tile, W
distances of a tile, R rows of the table of distances.
"""

import dataclasses
import functools
import math
from typing import Self

from txl_tf.tpu_kernels.attention_plan import (
    LANES,
    QUERY_TILES,
    TURN_COLUMNS,
    AttentionPlan,
    rounded_up,
)

# Largest useful tiles of keys of memory, by the bytes of a number.
_LARGEST_TILE = {2: 1536, 4: 512}
# Most keys of a tile of the segment. Many keys of a large tile would be later than its queries.
_LARGEST_SEGMENT_TILE = 256
# A memory gets fewer further places than this for the sake of larger tiles.
_MOST_UNUSED = 4 * LANES
# Memory is moved by the rows of a bfloat16 register.
_ROWS_OF_REGISTER = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class InferencePlan(AttentionPlan):
    """Sizes of the kernel that reads a segment and writes the next memory.

    Keys and values of memory and segment stay separate, so that nothing concatenates them.
    `memory_length` is the number of places `P` from `places_of`. There is no backward pass.
    """

    @functools.cached_property
    def block_keys(self) -> int:
        """Keys of a tile, a multiple of 128 that divides `P`."""
        return tile_of(self.memory_length, self._largest_tile)

    @property
    def _largest_tile(self) -> int:
        return self.kernel.max_block_keys or _LARGEST_TILE[self.item_bytes]

    @property
    def segment_block_keys(self) -> int:
        """Keys of a tile of the segment."""
        return tile_of(self.memory_length, min(self._largest_tile, _LARGEST_SEGMENT_TILE))

    @property
    def of_segment(self) -> Self:
        """The plan of the loop over the segment, which has other tiles of keys."""
        return dataclasses.replace(
            self,
            kernel=dataclasses.replace(self.kernel, max_block_keys=self.segment_block_keys),
        )

    @property
    def padded_key_length(self) -> int:
        """`K` with padding after the segment."""
        return self.memory_length + self.padded_segment_length

    @property
    def segment_key_length(self) -> int:
        """Keys of the segment, padded to whole tiles."""
        return rounded_up(self.padded_segment_length, self.segment_block_keys)

    @property
    def table_length(self) -> int:
        """`R`; row `j` of the table is the distance `padded_key_length - 1 - j`."""
        return rounded_up(self.padded_key_length + self.window, 16)

    @property
    def writes_memory(self) -> bool:
        """True if the kernel writes the next memory, which it can do in whole registers."""
        return self.segment_length % _ROWS_OF_REGISTER == 0

    @property
    def _tiles_of_parts(self) -> list[tuple[AttentionPlan, int]]:
        # Each tile of queries reads all of memory, and the segment up to its own last query.
        segment = self.of_segment
        ends = range(self.block_queries, self.padded_segment_length + 1, self.block_queries)
        of_segment = sum(math.ceil(end / segment.block_keys) for end in ends)
        of_memory = self.num_query_blocks * self.memory_length // self.block_keys
        return [(self, of_memory), (segment, of_segment)]

    @functools.cached_property
    def vmem_bytes(self) -> int:
        """Estimate of the memory on the chip that the kernel needs.

        The counts of temporary arrays are estimates too; the tests compile the kernel with them.
        """
        width = rounded_up(self.group_width, LANES)
        # Pallas keeps two copies of each block, to move one while it reads the other. Blocks of a
        # whole row: keys and values of memory, the same of the next memory, keys and values of the
        # segment, and distances.
        lengths = 4 * self.memory_length + 2 * self.segment_key_length + self.table_length
        whole = 2 * self.item_bytes * width * lengths
        # Two copies of the blocks of queries and results; 6 temporary float32 arrays (A, G).
        queries = self.block_queries * width * (2 * 2 * self.item_bytes + 4 * 6)
        # Temporary float32 arrays: 3 by key (A, C), such as scores, and 2 by distance (A, W).
        tile = 4 * self.block_queries * (3 * self.block_keys + 2 * self.window)
        # Keys and values (C, G) and distances (W, G) of a tile are cast where they are rounded.
        return whole + queries + tile + 4 * width * (2 * self.block_keys + self.window)


def tile_of(num_places: int, largest: int) -> int:
    """Returns the largest multiple of 128 that divides the places of memory."""
    tiles = range(LANES, min(num_places, max(largest, LANES)) + 1, LANES)
    return max(tile for tile in tiles if num_places % tile == 0)


def places_of(memory_length: int) -> int:
    """Returns the number of places that reads a memory of `memory_length` tokens fastest.

    A few more places than tokens can allow larger tiles.
    """
    least = max(rounded_up(memory_length, LANES), LANES)
    # A tile of C keys takes 2 products with C columns and one with about A + C distances, see
    # `forward_flops`, and a turn of the loop. So C keys cost 3 * C + A + `TURN_COLUMNS` columns.
    edges = QUERY_TILES[0] + TURN_COLUMNS

    def cost(num_places: int) -> float:
        return num_places * (3 + edges / tile_of(num_places, _LARGEST_TILE[2]))

    return min(range(least, least + _MOST_UNUSED, LANES), key=cost)
