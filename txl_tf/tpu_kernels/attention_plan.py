"""Sizes of the attention kernels of training: tiles, padding, blocks and memory on the chip.

Shape letters used in this module: B rows, T segment length, M memory length, K = M + T key
length, N heads, H head width, G width of a group of heads, A queries and C keys of a tile, W >= A +
C distances of a tile, R rows of the table of distances.
"""

import dataclasses
import functools
import math
from typing import Literal

LANES = 128
"""Columns of a register."""
_MEBIBYTE = 2**20
# The limit of a kernel that asks for no other, on the chip with the least memory.
_DEFAULT_VMEM_BYTES = 16 * _MEBIBYTE
# Share that the compiler leaves to a kernel; it keeps some for prefetches.
_KERNEL_SHARE = 15 / 16
# Larger tiles repeat less work at their edges.
QUERY_TILES = (256, 128)
_KEY_TILES = (512, 384, 256, 128)
# One turn of the loop over tiles of keys costs as much as a product with this many columns.
TURN_COLUMNS = 2 * LANES


@dataclasses.dataclass(frozen=True)
class AttentionKernel:
    """Settings of the attention kernel, the same for all sizes.

    With the platform `cpu` a program runs the kernel as plain operations. `rounds_products` is true
    if products of float32 numbers may round them to bfloat16 first. The maxima limit the queries
    and keys of a tile; with `None` the fastest tiles are used. `vmem_mebibytes` is the memory on
    the chip that one core has.
    """

    platform: Literal["tpu", "cpu"] = "tpu"
    rounds_products: bool = False
    max_block_queries: int | None = None
    max_block_keys: int | None = None
    vmem_mebibytes: int = 128

    @property
    def largest_vmem_bytes(self) -> int:
        """Memory on the chip that a kernel may have."""
        return int(self.vmem_mebibytes * _KERNEL_SHARE) * _MEBIBYTE


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionPlan:
    """Sizes of the forward and the backward kernel of relative attention.

    Lengths may be arbitrary: padding before memory and after the segment keeps all distances.
    `attention_kernels` explains tiles, groups of heads and the table of distances. Raises
    ValueError if the blocks of one row do not fit the memory on the chip.
    """

    num_rows: int  # B
    segment_length: int  # T
    memory_length: int  # M, may be 0
    num_heads: int  # N
    head_dim: int  # H
    score_scale: float = 1.0
    """Factor of the scores, which the layer sets. No size depends on it."""
    dtype: str
    """Dtype of queries, keys, values and distances, `bfloat16` or `float32`."""
    dropout: float = 0.0
    """Rate of the dropout of attention probabilities, 0 outside of training."""
    farthest: int | None = None
    """Largest distance that a query sees, at least 0; `None` sets no limit."""
    has_query_starts: bool = False
    """True if every query has its own first visible key, as with documents."""
    kernel: AttentionKernel = AttentionKernel()

    def __post_init__(self) -> None:
        largest = self.kernel.largest_vmem_bytes
        if self.vmem_bytes > largest:
            raise ValueError(
                f"Attention over {self.key_length} keys needs {self.vmem_bytes / _MEBIBYTE:.0f} "
                f"MiB; the chip has {largest // _MEBIBYTE} MiB. Received: {self}"
            )

    @property
    def key_length(self) -> int:
        return self.memory_length + self.segment_length

    @functools.cached_property
    def block_queries(self) -> int:
        """Queries of a tile, a multiple of the rows of a register."""
        largest = self.kernel.max_block_queries or self._tiles[0]
        return rounded_up(min(self.segment_length, largest), 16)

    @functools.cached_property
    def block_keys(self) -> int:
        """Keys of a tile, a multiple of 128."""
        largest = self.kernel.max_block_keys or self._tiles[1]
        return rounded_up(min(self.key_length, largest), LANES)

    @functools.cached_property
    def _tiles(self) -> tuple[int, int]:
        """Largest tiles of queries and keys, chosen for the least work."""
        if self.item_bytes > 2:
            return LANES, LANES
        queries = min(QUERY_TILES, key=lambda tile: (rounded_up(self.segment_length, tile), -tile))
        padded = self.memory_length + rounded_up(self.segment_length, queries)
        # Both passes compute 11 products for a tile, see `forward_flops` and `backward_flops`: 7
        # with C columns, and 4 with a column for each of about A + C distances. So C keys cost
        # 11 * C + 4 * A columns and a turn of the loop.
        edges = 4 * queries + TURN_COLUMNS
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
        return self.padded_key_length - self.padded_segment_length

    @property
    def window(self) -> int:
        """`W`, the distances that a tile reads, a multiple of 128."""
        return rounded_up(self.block_queries + self.block_keys, LANES)

    @property
    def table_length(self) -> int:
        """`R`; row `j` of the table is the distance `padded_key_length - 1 - j`."""
        last_start = self.padded_segment_length - self.block_queries + self.padded_key_length
        return rounded_up(last_start - self.block_keys + self.window, 16)

    @property
    def num_query_blocks(self) -> int:
        return self.padded_segment_length // self.block_queries

    @property
    def heads_per_group(self) -> int:
        """Heads whose columns lie side by side in a block: the fewest that fill whole registers.

        If no smaller number does, these are all heads. Zeros separate the heads of a group, see
        `Tile.is_of_head`. Each head multiplies all `G` columns, which costs little, as narrow heads
        would not fill a product.
        """
        for count in range(1, self.num_heads):
            if self.num_heads % count == 0 and count * self.head_dim % LANES == 0:
                return count
        return self.num_heads

    @property
    def num_groups(self) -> int:
        return self.num_heads // self.heads_per_group

    @property
    def group_width(self) -> int:
        """`G`, the columns of a group."""
        return self.heads_per_group * self.head_dim

    def key_blocks_of_queries(self, block: int) -> tuple[int, int]:
        """Returns the range of tiles of keys that a tile of queries may need: its first and end."""
        first = self.padded_memory_length - self.memory_length
        if self.farthest is not None:
            first_query = self.padded_memory_length + block * self.block_queries
            first = max(first, first_query - self.farthest)
        end = self.padded_memory_length + (block + 1) * self.block_queries
        return first // self.block_keys, -(-end // self.block_keys)

    @property
    def _tiles_of_parts(self) -> list[tuple["AttentionPlan", int]]:
        """Numbers of tiles of scores of one head and row with a full memory.

        Each number has the plan with the sizes of its tiles.
        """
        spans = map(self.key_blocks_of_queries, range(self.num_query_blocks))
        return [(self, sum(end - first for first, end in spans))]

    @property
    def forward_flops(self) -> int:
        """Floating-point operations of the products of the forward pass.

        In each tile and head, queries are multiplied with keys and distances, and weights with
        values: `2 * C + W` columns.
        """
        columns = sum(
            count * (2 * part.block_keys + part.window) for part, count in self._tiles_of_parts
        )
        return self.num_rows * self.num_heads * 2 * self.block_queries * self.group_width * columns

    @property
    def backward_flops(self) -> int:
        """Floating-point operations of the products of the backward pass.

        The reversals of rows, which are products too, are included.
        """
        num_tiles = self.num_rows * self.num_heads * self._tiles_of_parts[0][1]
        # The scores by key and by distance, again, and the gradient of the results times values.
        turns = 2 if self.sums_twice else 1
        again = turns * (2 * self.block_keys + self.window)
        # With C columns the gradients of values, keys and content queries; with W columns the
        # gradients of distances and position queries.
        per_query = self.group_width * (3 * self.block_keys + 2 * self.window + again)
        # The reversal of the gradients of scores: a product of (A, A) with (A, C).
        per_query += self.block_queries * self.block_keys
        # Three reversals for each tile of queries, products of (A, A) with (A, G): of the queries,
        # and of both halves of their float32 gradient. The dtype float32 needs only two, but the
        # third is counted all the same.
        reversals = self.padded_segment_length * self.block_queries * self.group_width * 3 * 2
        return (
            num_tiles * 2 * self.block_queries * per_query
            + self.num_rows * self.num_groups * reversals
        )

    @property
    def sums_twice(self) -> bool:
        """True if the backward pass computes the probabilities twice, for exactness.

        The first time, it sums the mean of a query's gradients. Otherwise this mean comes from the
        rounded results of the forward pass.
        """
        return self.dtype == "float32"

    @property
    def num_exponentials(self) -> int:
        """Exponentials of the scores of one pass."""
        columns = sum(count * part.block_keys for part, count in self._tiles_of_parts)
        return self.num_rows * self.num_heads * self.block_queries * columns

    @property
    def score_bytes(self) -> int:
        """Bytes that the scores of all rows and heads would take in float32."""
        return 4 * self.num_rows * self.num_heads * self.segment_length * self.key_length

    @functools.cached_property
    def vmem_bytes(self) -> int:
        """Estimate of the memory on the chip that the backward pass needs; the other needs less.

        The counts of temporary arrays are estimates too; the tests compile the kernels with them.
        """
        width = rounded_up(self.group_width, LANES)
        # Pallas keeps two copies of each block, to move one while it reads the other. Blocks of a
        # whole row: keys, values and their gradients; distances and their gradients.
        whole = 2 * self.item_bytes * width * (4 * self.padded_key_length + 2 * self.table_length)
        # The float32 sums of the gradients of keys, values and distances.
        sums = 4 * width * (2 * self.padded_key_length + self.table_length)
        # Two copies of the blocks of queries, results, their gradients and the gradients of
        # queries, and of a fifth block as a margin; 8 temporary float32 arrays (A, G).
        queries = self.block_queries * width * (2 * 5 * self.item_bytes + 4 * 8)
        # Temporary float32 arrays: 6 by key (A, C), such as scores, and 4 by distance (A, W).
        tile = 4 * self.block_queries * (6 * self.block_keys + 4 * self.window)
        # Temporary float32 arrays (C, G) and (W, G): two for keys and two for distances.
        products = 4 * width * (2 * self.block_keys + 2 * self.window)
        return whole + sums + queries + tile + products

    @property
    def vmem_limit_bytes(self) -> int:
        """Memory on the chip that the kernel asks for: a quarter more than the estimate."""
        estimate = rounded_up(self.vmem_bytes * 5 // 4, _MEBIBYTE)
        return min(max(estimate, _DEFAULT_VMEM_BYTES), self.kernel.largest_vmem_bytes)


def rounded_up(number: int, multiple: int) -> int:
    """Rounds a number up to a multiple."""
    return math.ceil(number / multiple) * multiple
