"""Sizes of the attention kernel for segments with a memory of keys and values.

Shape letters used in this module: T tokens, P places of memory, K = P + T key length, N heads,
H head width, G width of a group of heads.
"""

import dataclasses
import functools
from typing import Self

from txl_tf.tpu_kernels.attention_plan import LANES, AttentionPlan, rounded_up

# Largest useful tiles of keys, and the most places added to a memory for them.
_LARGEST_TILE = {2: 1536, 4: 512}
_LARGEST_SEGMENT_TILE = 256
_MOST_UNUSED = 4 * LANES
# Memory is moved by the rows of a bfloat16 register.
_ROWS_OF_REGISTER = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class InferencePlan(AttentionPlan):
    """Sizes of one kernel that reads a segment and writes the next memory.

    Keys and values of memory and segment stay separate, so that nothing concatenates them.
    `memory_length` is the number of places `P`, a multiple of 128 (ValueError otherwise). There is
    no backward pass.
    """

    def __post_init__(self) -> None:
        if self.memory_length < LANES or self.memory_length % LANES or self.dropout:
            raise ValueError(
                f"Places of memory must be a positive multiple of {LANES}, and nothing is "
                f"dropped. Received: {self}"
            )
        super().__post_init__()

    @functools.cached_property
    def block_keys(self) -> int:
        """Keys of a tile, a multiple of 128 that divides `P`."""
        return tile_of(self.memory_length, self._largest_tile)

    @property
    def _largest_tile(self) -> int:
        return self.max_block_keys or _LARGEST_TILE[self.item_bytes]

    @property
    def segment_block_keys(self) -> int:
        """Keys of a tile of the segment; small tiles follow the diagonal."""
        return tile_of(self.memory_length, min(self._largest_tile, _LARGEST_SEGMENT_TILE))

    @property
    def of_segment(self) -> Self:
        """The plan of the part that attends to the segment."""
        return dataclasses.replace(self, max_block_keys=self.segment_block_keys)

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
        """Rows of the table of distances; row `j` is the distance `padded K - 1 - j`."""
        return rounded_up(self.padded_key_length + self.window, 16)

    @property
    def writes_memory(self) -> bool:
        """True if the kernel writes the next memory, which it can do in whole registers."""
        return self.segment_length % _ROWS_OF_REGISTER == 0

    @property
    def forward_flops(self) -> int:
        """Operations of the products, with a full memory."""
        segment = self.of_segment
        ends = range(1, self.num_query_blocks + 1)
        tiles = sum(-(-end * self.block_queries // segment.block_keys) for end in ends)
        of_segment = tiles * (2 * segment.block_keys + segment.window)
        of_memory = (2 * self.block_keys + self.window) * self.memory_length // self.block_keys
        columns = of_segment + self.num_query_blocks * of_memory
        return self.num_rows * self.num_heads * 2 * self.block_queries * self.group_width * columns

    @property
    def num_exponentials(self) -> int:
        """Exponentials of the scores, with a full memory."""
        scores = self.padded_segment_length * self.padded_key_length
        return self.num_rows * self.num_heads * scores

    @functools.cached_property
    def vmem_bytes(self) -> int:
        """Memory on the chip that the kernel needs."""
        width = rounded_up(self.group_width, LANES)
        # Keys and values of memory are read and written. Pallas keeps two copies of each block.
        lengths = 4 * self.memory_length + 2 * self.segment_key_length + self.table_length
        whole = 2 * self.item_bytes * width * lengths
        queries = self.block_queries * width * (2 * 2 * self.item_bytes + 4 * 6)
        tile = 4 * self.block_queries * (3 * self.block_keys + 2 * self.window)
        # A tile of keys and its distances are cast where they are rounded.
        return whole + queries + tile + 4 * width * (2 * self.block_keys + self.window)


def tile_of(num_places: int, largest: int) -> int:
    """Returns the largest multiple of 128 that divides the places of memory."""
    tiles = range(LANES, min(num_places, max(largest, LANES)) + 1, LANES)
    return max(tile for tile in tiles if num_places % tile == 0)


def places_of(memory_length: int) -> int:
    """Returns the best number of places for a memory of `memory_length` tokens.

    A few more places than tokens can allow larger tiles. The edges of a tile repeat the work of
    two registers of columns and of the queries of another tile.
    """
    least = max(rounded_up(memory_length, LANES), LANES)

    def cost(num_places: int) -> float:
        tile = tile_of(num_places, _LARGEST_TILE[2])
        return num_places * (3 + 4 * LANES / tile)

    return min(range(least, least + _MOST_UNUSED, LANES), key=cost)
