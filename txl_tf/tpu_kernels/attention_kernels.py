"""Forward and backward pass of relative attention, and reading with a memory, as Pallas kernels.

The kernels extend the tiles of Dao et al. (2022), "FlashAttention", by the distances of Dai et al.
(2019). Scores are computed tile by tile on the chip and never written to memory. For example, 22
rows, 8 heads, T = 512 and K = 1,024 have 369 MB of scores in float32 in a layer, and plain
operations pass them through memory several times. A tile of 256 queries and 512 keys has 512 KiB.

**Grid.** A kernel runs once for each group of heads, row and tile of queries; the tiles of queries
change fastest. A block is the part of an array that one run sees, see `attention_call.kernel_of`:

- of a tile of queries: queries, results and their gradients `(1, A, G)`;
- of a row and group: keys, values and their gradients `(1, K, G)`;
- of a group: the table of distances `(R, G)` and the biases `(2, G)`.

A group has the fewest heads whose columns fill registers of 128 columns.

**Loop.** For each head of the group, a run loops over the tiles of keys from `first_of_keys` to
`end_of_keys`: the tiles between hold all keys that the queries see. For each tile it computes the
scores `(A, C)`. The scores by distance `(A, W)` become scores by key by a roll of their rows, see
`Tile.scores`.

**Sums.** In the forward pass, the state of the loop has the largest score so far, and the sums of
weights and of weighted values relative to it, see `_attend`. The backward pass computes the scores
again, and has two kinds of sums. The gradients of queries are the state of the loop. The gradients
of keys, values and distances stay in float32 on the chip from run to run, see `backward_kernel`.

Shape letters used in this module: B rows, T segment length, K key length, N heads, H head width,
G columns of a group of heads, R rows of the table of distances, A queries and C keys of a tile,
W distances of a tile; in inference S keys of the segment, P places of memory. T, K, S and R include
padding.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from txl_tf.functional import MASKED_SCORE
from txl_tf.stateless_random import DRAWN_BITS, dropout_threshold
from txl_tf.tpu_kernels.attention_plan import AttentionPlan
from txl_tf.tpu_kernels.inference_plan import InferencePlan

# Scalars of a row: its first visible key and both keys of the hash. After them comes the first
# visible key of each tile of queries, see `attention_call`.
_NUM_ROW_SCALARS = 3
# The axes over which a product sums if its left or its right matrix is transposed.
_LEFT_TRANSPOSED, _RIGHT_TRANSPOSED = (0, 0), (1, 1)


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
        of_positions = self.product(position_query, distances, _RIGHT_TRANSPOSED)  # [A, W]
        of_positions = self.rolled(of_positions, plan.window - plan.block_queries + 1)
        scores = (
            self.product(content_query, key, _RIGHT_TRANSPOSED) + of_positions[:, : plan.block_keys]
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
        turned = self.reversed_rows(gradients.astype(self.dtype))
        zeros = jnp.zeros((plan.block_queries, plan.window - plan.block_keys), jnp.float32)
        return self.rolled(jnp.concatenate([turned, zeros], axis=1), 0)

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


def _only(is_of_head: Any, values: Any) -> Any:
    """Returns values `(A, G)` with 0 in the columns of other heads, see `Tile.is_of_head`."""
    return values if is_of_head is None else jnp.where(is_of_head, values, jnp.zeros_like(values))


def _merge_heads(is_of_head: Any, values: Any, others: Any) -> Any:
    """Returns `values` in the columns of a head, and `others` in the columns of other heads."""
    return values if is_of_head is None else jnp.where(is_of_head, values, others)


class _Keys(NamedTuple):
    """Keys and values of one array that a tile of queries attends to: a range of tiles of keys.

    Tiles have the numbers `first` to `end - 1`, which count from the first key of memory. The
    arrays `key` and `value` begin with the tile `num_before`.
    """

    tile: Tile
    key: Any
    value: Any
    first: Any
    end: Any
    num_before: int = 0


def _attend(
    parts: Sequence[_Keys],
    query: Any,
    biases: Any,
    distances: Any,
    attended: Any,
    log_sums: Any = None,
) -> None:
    """Attends from a tile of queries to all parts, by one softmax per head.

    Writes the results to `attended`, and the logarithms of the sums of exponentials to `log_sums`,
    which the backward pass needs.
    """
    tile = parts[0].tile
    queries = [tile.queries(query[0], biases[place : place + 1, :]) for place in (0, 1)]
    results = tile.zeros()
    for head in range(tile.plan.heads_per_group):
        is_of_head = tile.is_of_head(head)
        content, position = (_only(is_of_head, each) for each in queries)
        # The state has the largest score so far `(A, 1)`, the sum of weights `(A, 1)` and the sum
        # of weighted values `(A, G)`. A weight is the exponential of a score minus the largest.
        column = tile.plan.block_queries, 1
        # In a tile without a visible key for a query, all scores are `MASKED_SCORE`, and their
        # weights enter the sums. The next tile with a visible key scales these sums to 0.
        largest = jnp.full(column, MASKED_SCORE, jnp.float32)
        state = largest, jnp.zeros(column, jnp.float32), tile.zeros()
        for part in parts:
            step = functools.partial(_add_tile, part, content, position, distances, head)
            state = jax.lax.fori_loop(part.first, part.end, step, state)
        largest, total, sums = state
        results = _merge_heads(is_of_head, sums / total, results)
        if log_sums is not None:
            log_sums[0, 0, 0, head : head + 1, :] = tile.as_row(largest + jnp.log(total))
    attended[0] = results.astype(attended.dtype)


def _add_tile(
    part: _Keys, content: Any, position: Any, distances: Any, head: int, block: Any, state: Any
) -> tuple[Any, Any, Any]:
    """Adds a tile of keys to the state of `_attend`, and returns the next state."""
    largest, total, sums = state
    tile = part.tile
    keys, rows = tile.key_rows(block - part.num_before), tile.distance_rows(block)
    scores = tile.scores(content, position, part.key[0, keys, :], distances[rows, :], block)
    next_largest = jnp.maximum(largest, jnp.max(scores, axis=1, keepdims=True))
    # Earlier weights are relative to a smaller maximum.
    faded = jnp.exp(largest - next_largest)
    weights = jnp.exp(scores - next_largest)
    total = total * faded + jnp.sum(weights, axis=1, keepdims=True)
    weights = tile.dropped(weights, head, block)
    sums = sums * faded + tile.product(weights, part.value[0, keys, :])
    return next_largest, total, sums


def forward_kernel(plan: AttentionPlan, scalars: Any, *references: Any) -> None:
    """Attends from one tile of queries to all keys that they see."""
    query, key, value, distances, biases, *first_keys, attended, log_sums = references
    tile = Tile(plan, scalars, *first_keys)
    part = _Keys(tile, key, value, tile.first_of_keys, tile.end_of_keys)
    _attend([part], query, biases, distances, attended, log_sums)


def inference_kernel(plan: InferencePlan, scalars: Any, *references: Any) -> None:
    """Attends from a tile of queries to memory and segment, and writes the next memory.

    Keys of memory and segment stay separate: on a TPU, concatenating them and slicing the next
    memory takes longer than attention. The run of the first tile of queries of a row writes the
    next memory from the blocks on the chip.
    """
    num_inputs = 8 if plan.has_query_starts else 7
    inputs, (attended, *next_memory) = references[:num_inputs], references[num_inputs:]
    query, key, value, memory_key, memory_value, distances, biases, *first_keys = inputs
    memory, segment = (Tile(each, scalars, *first_keys) for each in (plan, plan.of_segment))
    num_of_memory, num_before = (
        plan.memory_length // each.plan.block_keys for each in (memory, segment)
    )
    first = jnp.maximum(segment.first_of_keys, num_before)
    parts = [
        _Keys(memory, memory_key, memory_value, memory.first_of_keys, num_of_memory),
        _Keys(segment, key, value, first, segment.end_of_keys, num_before),
    ]
    _attend(parts, query, biases, distances, attended)

    if not plan.writes_memory:
        return

    @pl.when(memory.block == 0)
    def _() -> None:
        num_new = min(plan.segment_length, plan.memory_length)
        num_kept, end = plan.memory_length - num_new, plan.segment_length
        pairs = (memory_key, key), (memory_value, value)
        for result, (old, new) in zip(next_memory, pairs, strict=True):
            if num_kept:
                result[0, :num_kept, :] = old[0, num_new:, :]
            result[0, num_kept:, :] = new[0, end - num_new : end, :]


def backward_kernel(plan: AttentionPlan, scalars: Any, *references: Any) -> None:
    """Computes the gradients of one tile of queries, and adds to the gradients of their keys.

    Queries of several tiles see a key, and its gradient is the sum over them. So these sums stay on
    the chip in float32 from run to run:

    - The gradients of keys and values `(K, G)` are sums over a row. Its first tile of queries sets
      them to 0, and its last tile writes them.
    - The gradients of distances `(R, G)` are sums over all rows. The first tile of the first row
      sets them to 0, and the last tile of the last row writes them.
    - The gradients of biases `(2, G)` are sums over all rows too. They are float32 results, so they
      are summed in place.
    """
    query, key, value, distances, biases, *first_keys = references[: 5 + plan.has_query_starts]
    tile = Tile(plan, scalars, *first_keys)
    attended, log_sums, gradient, *results = references[5 + plan.has_query_starts :]
    of_query, of_key, of_value, of_distances, of_biases, *sums = results
    key_sums, value_sums, distance_sums = sums

    @pl.when(tile.block == 0)
    def _() -> None:
        for each in (key_sums, value_sums):
            each[...] = jnp.zeros_like(each)

    @pl.when(jnp.logical_and(tile.block == 0, tile.row == 0))
    def _() -> None:
        for each in (distance_sums, of_biases):
            each[...] = jnp.zeros_like(each)

    content_query = tile.queries(query[0], biases[0:1, :])  # [A, G]
    position_query = tile.queries(query[0], biases[1:2, :])
    reversed_query = tile.reversed_rows(position_query).astype(tile.dtype)
    inputs = key, value, distances, attended, log_sums, gradient
    of_content = of_position = tile.zeros()
    for head in range(plan.heads_per_group):
        is_of_head = tile.is_of_head(head)
        queries = [
            _only(is_of_head, each) for each in (content_query, position_query, reversed_query)
        ]
        gradients = _gradients_of_head(tile, head, is_of_head, queries, inputs, sums)
        of_content = _merge_heads(is_of_head, gradients[0], of_content)
        of_position = _merge_heads(is_of_head, gradients[1], of_position)
    of_content, of_position = of_content * plan.score_scale, of_position * plan.score_scale
    of_biases[0:1, :] += jnp.sum(of_content, axis=0, keepdims=True)
    of_biases[1:2, :] += jnp.sum(of_position, axis=0, keepdims=True)
    of_query[0] = (of_content + tile.reversed_rows(of_position)).astype(of_query.dtype)
    is_last_tile = tile.block == plan.num_query_blocks - 1

    @pl.when(is_last_tile)
    def _() -> None:
        of_key[0] = key_sums[...].astype(of_key.dtype)
        of_value[0] = value_sums[...].astype(of_value.dtype)

    @pl.when(jnp.logical_and(tile.row == plan.num_rows - 1, is_last_tile))
    def _() -> None:
        of_distances[...] = distance_sums[...].astype(of_distances.dtype)


def _gradients_of_head(
    tile: Tile,
    head: int,
    is_of_head: Any,
    queries: Sequence[Any],
    inputs: Sequence[Any],
    sums: Sequence[Any],
) -> tuple[Any, Any]:
    """Adds one head's gradients of keys, values and distances to the sums, tile by tile.

    `queries` are the content queries, the position queries, and the latter in reverse order, with 0
    in the columns of other heads. Returns the gradients of the first two, float32 `(A, G)`, the
    second in reverse order.
    """
    content, position, reversed_position = queries
    key, value, distances, attended, log_sums, gradient = inputs
    key_sums, value_sums, distance_sums = sums
    outer = _only(is_of_head, gradient[0])  # the gradient of the results
    log_sum = tile.as_column(log_sums[0, 0, 0, head : head + 1, :])

    def weights_of(block: Any) -> tuple[Any, Any]:
        """Returns the probabilities of a tile, and their gradients."""
        keys, rows = tile.key_rows(block), tile.distance_rows(block)
        scores = tile.scores(content, position, key[0, keys, :], distances[rows, :], block)
        inner = tile.product(outer, value[0, keys, :], _RIGHT_TRANSPOSED)
        return jnp.exp(scores - log_sum), tile.dropped(inner, head, block)

    def add_expected(block: Any, total: Any) -> Any:
        weights, inner = weights_of(block)
        return total + jnp.sum(weights * inner, axis=1, keepdims=True)

    # The mean of the gradients of the probabilities, weighted by these, `(A, 1)`.
    if tile.plan.sums_twice:
        # It is rounded like the gradients from which it is subtracted. So nothing is left of the
        # gradient where one key has all the weight.
        expected = jax.lax.fori_loop(
            tile.first_of_keys, tile.end_of_keys, add_expected, jnp.zeros_like(log_sum)
        )
    else:
        products = outer.astype(jnp.float32) * attended[0].astype(jnp.float32)
        expected = jnp.sum(products, axis=1, keepdims=True)

    def add_tile(block: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        of_content, of_position = state
        keys, rows = tile.key_rows(block), tile.distance_rows(block)
        weights, inner = weights_of(block)
        kept_weights = tile.dropped(weights, head, block)
        value_sums[keys, :] += tile.product(kept_weights, outer, _LEFT_TRANSPOSED)
        of_scores = weights * (inner - expected)  # [A, C]
        key_sums[keys, :] += tile.product(of_scores, content, _LEFT_TRANSPOSED)
        by_distance = tile.gradients_by_distance(of_scores)  # [A, W]
        distance_sums[rows, :] += tile.product(by_distance, reversed_position, _LEFT_TRANSPOSED)
        return (
            of_content + tile.product(of_scores, key[0, keys, :]),
            of_position + tile.product(by_distance, distances[rows, :]),
        )

    return jax.lax.fori_loop(
        tile.first_of_keys, tile.end_of_keys, add_tile, (tile.zeros(), tile.zeros())
    )
