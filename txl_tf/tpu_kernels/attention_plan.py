"""Choice and sizes of the attention kernels: tiles, padding, blocks and memory on the chip.

Shape letters used in this module: B rows, T segment length, M memory length, K = M + T key
length, N heads, H head width, G width of a group of heads, P places of memory in inference, where
K = P + T.
"""

import dataclasses
import functools
import importlib.metadata
import math
from typing import Any, Literal, Self

from txl_tf.config.model import ModelConfig, RecurrentConfig
from txl_tf.imports import is_on_jax

LANES = 128
"""Columns of a register."""
_MEBIBYTE = 2**20
# Default limit of a kernel, on the chip with the least memory.
_DEFAULT_VMEM_BYTES = 16 * _MEBIBYTE
# Share that the compiler leaves to a kernel; it keeps some for prefetches.
_KERNEL_SHARE = 15 / 16
# Larger tiles repeat less work at their edges, see BUILD_NOTES.
_QUERY_TILES = (256, 128)
_KEY_TILES = (512, 384, 256, 128)
# Largest useful tiles of keys, and the most places added to a memory for them.
_LARGEST_TILE = {2: 1536, 4: 512}
_LARGEST_SEGMENT_TILE = 256
_MOST_UNUSED = 4 * LANES
# Memory is moved by the rows of a bfloat16 register.
_ROWS_OF_REGISTER = 16
# Version of JAX that writes the kernels for TensorFlow, as in the extra `tpu-kernel`.
_JAX_VERSION = "0.10.2"
# MiB of memory on a core, of chips that rotate every row of a tile by its own distance at once.
_VMEM_MEBIBYTES = {"v5e": 128, "v5p": 64, "v6e": 128, "tpu7x": 64}
# XLA keeps scores of this size on a chip with 128 MiB, and a kernel moves more.
_SMALL_SCORES_BYTES = 8 * 2**20


@dataclasses.dataclass(frozen=True)
class AttentionKernel:
    """Settings of the attention kernel, the same for all sizes.

    The platform `cpu` runs the kernel as plain operations. `rounds_products` is true if products
    of float32 numbers may round them to bfloat16 first. Without maxima the fastest tiles are used.
    `vmem_mebibytes` is the memory on a core.
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
    """Sizes of one kernel of relative attention.

    Lengths may be arbitrary: padding before memory and after the segment keeps all distances.
    Raises ValueError if the blocks of one row do not fit the memory on the chip.
    """

    num_rows: int  # B
    segment_length: int  # T
    memory_length: int  # M, may be 0
    num_heads: int  # N
    head_dim: int  # H
    score_scale: float = 1.0
    """Factor of the scores, of the layer; no size depends on it."""
    dtype: str
    """Dtype of queries, keys, values and distances, `bfloat16` or `float32`."""
    dropout: float = 0.0
    """Rate on attention probabilities; 0 where there is no training."""
    farthest: int | None = None
    """Largest distance that a query sees, at least 0; None: all."""
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
        needed = rounded_up(self.segment_length, 16)
        allowed = self.kernel.max_block_queries or self._tiles[0]
        return min(needed, rounded_up(allowed, 16))

    @functools.cached_property
    def block_keys(self) -> int:
        """Keys of a tile, a multiple of 128."""
        needed = rounded_up(self.key_length, LANES)
        allowed = self.kernel.max_block_keys or self._tiles[1]
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
        return self.num_heads // self.heads_per_group

    @property
    def group_width(self) -> int:
        """`G`, the columns of a group."""
        return self.heads_per_group * self.head_dim

    def key_blocks_of_queries(self, block: int) -> tuple[int, int]:
        """Returns the tiles of keys, first and end, that a tile of queries needs at most."""
        first = self.padded_memory_length - self.memory_length
        if self.farthest is not None:
            queries_before = self.padded_memory_length + block * self.block_queries
            first = max(first, queries_before - self.farthest)
        end = self.padded_memory_length + (block + 1) * self.block_queries
        return first // self.block_keys, -(-end // self.block_keys)

    @property
    def _tiles_of_parts(self) -> list[tuple["AttentionPlan", int]]:
        """Tiles of scores of one head and row with a full memory, by the plan of their size."""
        spans = map(self.key_blocks_of_queries, range(self.num_query_blocks))
        return [(self, sum(end - first for first, end in spans))]

    @property
    def forward_flops(self) -> int:
        """Operations of the products of the forward pass."""
        tiles = self._tiles_of_parts
        columns = sum(count * (2 * part.block_keys + part.window) for part, count in tiles)
        return self.num_rows * self.num_heads * 2 * self.block_queries * self.group_width * columns

    @property
    def backward_flops(self) -> int:
        """Operations of the products of the backward pass, including the reversal of rows."""
        num_tiles = self.num_rows * self.num_heads * self._tiles_of_parts[0][1]
        turns = 2 if self.sums_twice else 1
        again = turns * (2 * self.block_keys + self.window)
        per_query = self.group_width * (3 * self.block_keys + 2 * self.window + again)
        per_query += self.block_queries * self.block_keys
        # Queries are reversed before the tiles of keys, their gradients after them, in halves.
        turned = self.padded_segment_length * self.block_queries * self.group_width * 3 * 2
        per_tile = 2 * self.block_queries * per_query
        return num_tiles * per_tile + self.num_rows * self.num_groups * turned

    @property
    def sums_twice(self) -> bool:
        """True if the backward pass computes probabilities again, for exactness.

        The mean of a query's gradients is then summed from the gradients themselves, and not from
        the rounded results of the forward pass.
        """
        return self.dtype == "float32"

    @property
    def num_exponentials(self) -> int:
        columns = sum(count * part.block_keys for part, count in self._tiles_of_parts)
        return self.num_rows * self.num_heads * self.block_queries * columns

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
        return min(max(asked, _DEFAULT_VMEM_BYTES), self.kernel.largest_vmem_bytes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class InferencePlan(AttentionPlan):
    """Sizes of one kernel that reads a segment and writes the next memory.

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
        """Keys of a tile of the segment; small tiles follow the diagonal."""
        return tile_of(self.memory_length, min(self._largest_tile, _LARGEST_SEGMENT_TILE))

    @property
    def of_segment(self) -> Self:
        """The plan of the part that attends to the segment."""
        kernel = dataclasses.replace(self.kernel, max_block_keys=self.segment_block_keys)
        return dataclasses.replace(self, kernel=kernel)

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
    def _tiles_of_parts(self) -> list[tuple[AttentionPlan, int]]:
        segment = self.of_segment
        ends = range(self.block_queries, self.padded_segment_length + 1, self.block_queries)
        of_segment = sum(math.ceil(end / segment.block_keys) for end in ends)
        of_memory = self.num_query_blocks * self.memory_length // self.block_keys
        return [(self, of_memory), (segment, of_segment)]

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
        return num_places * (3 + 4 * LANES / tile_of(num_places, _LARGEST_TILE[2]))

    return min(range(least, least + _MOST_UNUSED, LANES), key=cost)


def rounded_up(number: int, multiple: int) -> int:
    """Rounds a number up to a multiple."""
    return math.ceil(number / multiple) * multiple


@dataclasses.dataclass(frozen=True)
class AttentionChoice:
    """The kernel of a run and the reason for it.

    `kernel` is `None` if attention uses plain operations; reports print `reason`.
    """

    kernel: AttentionKernel | None
    reason: str

    @classmethod
    def for_model(
        cls,
        config: ModelConfig | RecurrentConfig,
        *,
        setting: Literal["auto", "always", "never"],
        chip: str | None,
        num_rows: int,
        num_tokens: int,
        dtype: str,
        rounds_products: bool,
        is_differentiated: bool,
    ) -> Self:
        """Chooses for a program that reads segments with memory.

        `chip` is a generation of TPU, such as `v5e`, if known. A replica reads `num_rows` rows and
        `num_tokens` tokens of each at once; attention computes in `dtype`. `rounds_products` is as
        in `AttentionKernel`, and `is_differentiated` is true for a backward pass.
        """
        if setting == "never":
            return cls.plain("attention_kernel is never")
        if not isinstance(config, ModelConfig) or config.position_encoding != "transformer_xl":
            return cls.plain("the kernel needs the positions of Transformer-XL")
        memory_length = config.effective_memory_length
        vmem = _VMEM_MEBIBYTES.get(chip or "", 128)
        kernel = AttentionKernel(rounds_products=rounds_products, vmem_mebibytes=vmem)
        sizes: dict[str, Any] = {
            "num_rows": num_rows,
            "segment_length": num_tokens,
            "num_heads": config.num_heads,
            "head_dim": config.head_dim,
            "dtype": dtype,
            "kernel": kernel,
        }
        plan: AttentionPlan
        try:
            if is_differentiated:
                plan = AttentionPlan(**sizes, memory_length=memory_length)
            else:
                plan = InferencePlan(**sizes, memory_length=places_of(memory_length))
        except ValueError:
            return cls.plain("the keys of a row do not fit in the memory on the chip")
        if setting == "auto" and plan.score_bytes < _SMALL_SCORES_BYTES:
            return cls.plain("the scores are small and stay on the chip without the kernel")
        if chip not in _VMEM_MEBIBYTES:
            return cls.plain(f"there is no kernel for {chip or 'an unknown chip'}")
        if not _has_jax():
            return cls.plain(f"JAX {_JAX_VERSION} of the extra tpu-kernel is not installed")
        return cls(kernel, "kernel, no scores in memory")

    @classmethod
    def plain(cls, why: str) -> Self:
        """Returns the choice of plain operations, with its reason."""
        return cls(None, f"plain operations: {why}")


def _has_jax() -> bool:
    if is_on_jax():
        return True
    try:
        return importlib.metadata.version("jax") == _JAX_VERSION
    except importlib.metadata.PackageNotFoundError:
        return False
