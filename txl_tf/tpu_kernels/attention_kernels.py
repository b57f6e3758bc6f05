"""Forward and backward pass of relative attention, and reading with a memory, as Pallas kernels.

The kernels extend the tiles of Dao et al. (2022), "FlashAttention", by the distances of Dai et al.
(2019). Scores are computed tile by tile on the chip and never written to memory. For example, 22
rows, 8 heads, T = 512 and K = 1,024 have 369 MB of scores in float32 in a layer, and plain
operations pass them through memory several times. A tile of 256 queries and 512 keys has 512 KiB.

**Grid.** A kernel runs once for each group of heads, row and tile of queries; the tiles of queries
change fastest. A group has the fewest heads whose columns fill registers of 128 columns. A block is
the part of an array that one run sees:

- of a tile of queries: queries, results and their gradients `(1, A, G)`;
- of a row and group: keys, values and their gradients `(1, K, G)`;
- of a group: the table of distances `(R, G)`, which has a row for each distance, the farthest
  first, and the biases `(2, G)`.

The references of a kernel are its inputs, results and sums on the chip, in the order of
`attention_grid`. A change of this order must change both files.

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

from txl_tf.functional import MASKED_SCORE
from txl_tf.tpu_kernels.attention_plan import AttentionPlan
from txl_tf.tpu_kernels.attention_tile import (
    LEFT_TRANSPOSED,
    RIGHT_TRANSPOSED,
    Tile,
    merge_heads,
    only_head,
)
from txl_tf.tpu_kernels.inference_plan import InferencePlan


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
        content, position = (only_head(is_of_head, each) for each in queries)
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
        results = merge_heads(is_of_head, sums / total, results)
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
    decay = jnp.exp(largest - next_largest)
    weights = jnp.exp(scores - next_largest)
    total = total * decay + jnp.sum(weights, axis=1, keepdims=True)
    weights = tile.dropped(weights, head, block)
    sums = sums * decay + tile.product(weights, part.value[0, keys, :])
    return next_largest, total, sums


def forward_kernel(plan: AttentionPlan, scalars: Any, *references: Any) -> None:
    """Attends from one tile of queries to all keys that they see."""
    query, key, value, distances, biases, *first_keys, attended, log_sums = references
    tile = Tile(plan, scalars, *first_keys)
    parts = [_Keys(tile, key, value, tile.first_of_keys, tile.end_of_keys)]
    _attend(parts, query, biases, distances, attended, log_sums)


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
    parts = [
        _Keys(memory, memory_key, memory_value, memory.first_of_keys, num_of_memory),
        _Keys(
            segment,
            key,
            value,
            first=jnp.maximum(segment.first_of_keys, num_before),
            end=segment.end_of_keys,
            num_before=num_before,
        ),
    ]
    _attend(parts, query, biases, distances, attended)

    if not plan.writes_memory:
        return

    @pl.when(memory.block == 0)
    def _() -> None:
        num_new = min(plan.segment_length, plan.memory_length)
        num_kept, end = plan.memory_length - num_new, plan.segment_length
        for result, old, new in zip(
            next_memory, (memory_key, memory_value), (key, value), strict=True
        ):
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
            only_head(is_of_head, each) for each in (content_query, position_query, reversed_query)
        ]
        gradients = _gradients_of_head(tile, head, is_of_head, queries, inputs, sums)
        of_content = merge_heads(is_of_head, gradients[0], of_content)
        of_position = merge_heads(is_of_head, gradients[1], of_position)
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
    outer = only_head(is_of_head, gradient[0])  # the gradient of the results
    log_sum = tile.as_column(log_sums[0, 0, 0, head : head + 1, :])

    def weights_of(block: Any) -> tuple[Any, Any]:
        """Returns the probabilities of a tile, and their gradients."""
        keys, rows = tile.key_rows(block), tile.distance_rows(block)
        scores = tile.scores(content, position, key[0, keys, :], distances[rows, :], block)
        inner = tile.product(outer, value[0, keys, :], RIGHT_TRANSPOSED)
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
        value_sums[keys, :] += tile.product(kept_weights, outer, LEFT_TRANSPOSED)
        of_scores = weights * (inner - expected)  # [A, C]
        key_sums[keys, :] += tile.product(of_scores, content, LEFT_TRANSPOSED)
        by_distance = tile.gradients_by_distance(of_scores)  # [A, W]
        distance_sums[rows, :] += tile.product(by_distance, reversed_position, LEFT_TRANSPOSED)
        return (
            of_content + tile.product(of_scores, key[0, keys, :]),
            of_position + tile.product(by_distance, distances[rows, :]),
        )

    return jax.lax.fori_loop(
        tile.first_of_keys, tile.end_of_keys, add_tile, (tile.zeros(), tile.zeros())
    )
