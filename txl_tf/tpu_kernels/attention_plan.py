"""Sizes of the attention kernels: tiles, padding, blocks and memory on the chip.

Shape letters used in this module: B rows, T segment length, M memory length, K = M + T key
length, N heads, H head width, G width of a group of heads, P places of memory in inference, where
K = P + T.
"""

import dataclasses
import functools
import math
from typing import Self

LANES = 128
"""Columns of a register."""
_MEBIBYTE = 2**20
# Default limit of a kernel, on the chip with the least memory.
_DEFAULT_VMEM_BYTES = 16 * _MEBIBYTE
# Of 128 MiB the compiler keeps some for prefetches.
_LARGEST_VMEM_BYTES = 120 * _MEBIBYTE
# Larger tiles repeat less work at their edges, see BUILD_NOTES.
_QUERY_TILES = (256, 128)
_KEY_TILES = (512, 384, 256, 128)
# Largest useful tiles of keys, and the most places added to a memory for them.
_LARGEST_TILE = {2: 1536, 4: 512}
_LARGEST_SEGMENT_TILE = 256
_MOST_UNUSED = 4 * LANES
# Memory is moved by the rows of a bfloat16 register.
_ROWS_OF_REGISTER = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionPlan:
    """Sizes of one kernel of relative attention.

    Lengths may be arbitrary: padding before memory and after the segment keeps all distances.
    Raises ValueError if a size is not positive, a query cannot see even itself, or the blocks of
    one row do not fit the memory on the chip.
    """

    num_rows: int
    """`B`."""
    segment_length: int
    """`T`."""
    memory_length: int
    """`M`, which may be 0."""
    num_heads: int
    """`N`."""
    head_dim: int
    """`H`."""
    dtype: str
    """Dtype of queries, keys, values and distances, `bfloat16` or `float32`."""
    dropout: float = 0.0
    """Rate on attention probabilities; 0 where there is no training."""
    farthest: int | None = None
    """Largest distance that a query sees, at least 0; None: all."""
    has_query_starts: bool = False
    """True if every query has its own first visible key, as with documents."""
    rounds_products: bool = False
    """True if products of float32 numbers may round them to bfloat16 first."""
    has_strided_rolls: bool = True
    """True if the chip rotates every row of a tile by its own distance at once."""
    max_block_queries: int | None = None
    """Largest tile of queries; None: the fastest."""
    max_block_keys: int | None = None
    """Largest tile of keys; None: the fastest."""

    def __post_init__(self) -> None:
        sizes = (self.num_rows, self.segment_length, self.num_heads, self.head_dim)
        if min(sizes) < 1 or min(self.memory_length, self.farthest or 0) < 0:
            raise ValueError(f"Sizes of attention must be positive. Received: {self}")
        if self.vmem_bytes > _LARGEST_VMEM_BYTES:
            raise ValueError(
                f"Attention over {self.key_length} keys takes {self.vmem_bytes / _MEBIBYTE:.0f} "
                f"MiB of {_LARGEST_VMEM_BYTES // _MEBIBYTE} on the chip. Received: {self}"
            )

    @property
    def key_length(self) -> int:
        """Key length `K`."""
        return self.memory_length + self.segment_length

    @functools.cached_property
    def block_queries(self) -> int:
        """Queries of a tile, a multiple of the rows of a register."""
        needed = rounded_up(self.segment_length, 16)
        allowed = self.max_block_queries or self._tiles[0]
        return min(needed, rounded_up(allowed, 16))

    @functools.cached_property
    def block_keys(self) -> int:
        """Keys of a tile, a multiple of 128."""
        needed = rounded_up(self.key_length, LANES)
        allowed = self.max_block_keys or self._tiles[1]
        return min(needed, rounded_up(allowed, LANES))

    @functools.cached_property
    def _tiles(self) -> tuple[int, int]:
        """Largest tiles of queries and keys, chosen for the least work."""
        if self.item_bytes > 2:
            return LANES, LANES
        queries = min(_QUERY_TILES, key=lambda tile: (rounded_up(self.segment_length, tile), -tile))
        padded = self.memory_length + rounded_up(self.segment_length, queries)
        # Of 11 products 4 are with distances, and a tile reads more distances than keys. A turn of
        # the loop costs as much as two registers of columns of one product.
        edges = 4 * queries + 2 * LANES
        keys = min(_KEY_TILES, key=lambda tile: rounded_up(padded, tile) * (11 + edges / tile))
        return queries, keys

    @property
    def item_bytes(self) -> int:
        """Bytes of a number of the inputs."""
        return 2 if self.dtype == "bfloat16" else 4

    @property
    def padded_segment_length(self) -> int:
        """`T` with padding, a multiple of `block_queries`."""
        return rounded_up(self.segment_length, self.block_queries)

    @property
    def padded_key_length(self) -> int:
        """`K` with padding, a multiple of `block_keys`."""
        return rounded_up(self.memory_length + self.padded_segment_length, self.block_keys)

    @property
    def padded_memory_length(self) -> int:
        """`M` with padding."""
        return self.padded_key_length - self.padded_segment_length

    @property
    def window(self) -> int:
        """Distances that a tile reads, a multiple of 128."""
        return rounded_up(self.block_queries + self.block_keys, LANES)

    @property
    def table_length(self) -> int:
        """Rows of the table of distances with padding; row `j` is `padded_key_length - 1 - j`."""
        last_start = self.padded_segment_length - self.block_queries + self.padded_key_length
        return rounded_up(last_start - self.block_keys + self.window, 16)

    @property
    def num_query_blocks(self) -> int:
        """Number of tiles of queries."""
        return self.padded_segment_length // self.block_queries

    @property
    def heads_per_group(self) -> int:
        """Heads whose columns lie side by side in a block.

        The fewest that fill registers of 128 columns. The heads of a group are separated by
        zeros, not by slices: slicing within a register is slow, and narrow heads do not fill a
        product anyway.
        """
        for count in range(1, self.num_heads):
            if self.num_heads % count == 0 and count * self.head_dim % LANES == 0:
                return count
        return self.num_heads

    @property
    def num_groups(self) -> int:
        """Number of groups of heads."""
        return self.num_heads // self.heads_per_group

    @property
    def group_width(self) -> int:
        """`G`, the columns of a group."""
        return self.heads_per_group * self.head_dim

    def query_blocks_of_keys(self, block: int) -> tuple[int, int]:
        """Returns the first tile of keys that a tile of queries needs, and the one after the last.

        The memory counts as full.
        """
        first = self.padded_memory_length - self.memory_length
        if self.farthest is not None:
            queries_before = self.padded_memory_length + block * self.block_queries
            first = max(first, queries_before - self.farthest)
        end = self.padded_memory_length + (block + 1) * self.block_queries
        return first // self.block_keys, -(-end // self.block_keys)

    @property
    def num_tiles(self) -> int:
        """Tiles of scores of one head and row with a full memory."""
        spans = map(self.query_blocks_of_keys, range(self.num_query_blocks))
        return sum(end - first for first, end in spans)

    @property
    def forward_flops(self) -> int:
        """Operations of the products of the forward pass."""
        per_query = self.group_width * (2 * self.block_keys + self.window)
        return self._of_all_tiles(2 * self.block_queries * per_query)

    @property
    def backward_flops(self) -> int:
        """Operations of the products of the backward pass, including the reversal of rows."""
        turns = 2 if self.sums_twice else 1
        again = turns * (2 * self.block_keys + self.window)
        per_query = self.group_width * (3 * self.block_keys + 2 * self.window + again)
        per_query += self.block_queries * self.block_keys
        per_tile = self._of_all_tiles(2 * self.block_queries * per_query)
        # Queries are reversed before the tiles of keys, their gradients after them, in halves.
        turned = self.padded_segment_length * self.block_queries * self.group_width * 3 * 2
        return per_tile + self.num_rows * self.num_groups * turned

    @property
    def sums_twice(self) -> bool:
        """True if the backward pass computes probabilities again, for exactness.

        The mean of a query's gradients is then summed from the gradients themselves, and not from
        the rounded results of the forward pass.
        """
        return self.dtype == "float32"

    @property
    def num_exponentials(self) -> int:
        """Exponentials of one pass, the larger of the two."""
        turns = 2 if self.sums_twice else 1
        return turns * self._of_all_tiles(self.block_queries * self.block_keys)

    def _of_all_tiles(self, of_one: int) -> int:
        return self.num_rows * self.num_heads * self.num_tiles * of_one

    @property
    def score_bytes(self) -> int:
        """Bytes that the scores of all rows and heads would take in float32."""
        return 4 * self.num_rows * self.num_heads * self.segment_length * self.key_length

    @functools.cached_property
    def vmem_bytes(self) -> int:
        """Memory on the chip that the backward pass needs, the larger of the two."""
        width = rounded_up(self.group_width, LANES)
        # Pallas keeps two copies of each block, to move one while it reads the other.
        whole = 2 * self.item_bytes * width * (4 * self.padded_key_length + 2 * self.table_length)
        sums = 4 * width * (2 * self.padded_key_length + self.table_length)
        queries = self.block_queries * width * (2 * 5 * self.item_bytes + 4 * 8)
        tile = 4 * self.block_queries * (6 * self.block_keys + 4 * self.window)
        products = 4 * width * (2 * self.block_keys + 2 * self.window)
        return whole + sums + queries + tile + products

    @property
    def vmem_limit_bytes(self) -> int:
        """Memory on the chip to ask for."""
        asked = rounded_up(self.vmem_bytes * 5 // 4, _MEBIBYTE)
        return min(max(asked, _DEFAULT_VMEM_BYTES), _LARGEST_VMEM_BYTES)


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


def rounded_up(number: int, multiple: int) -> int:
    """Rounds a number up to a multiple."""
    return math.ceil(number / multiple) * multiple
