"""Forward and backward pass of relative attention, and reading with a memory, as Pallas kernels.

Scores are computed tile by tile on the chip, summed with a running maximum and never written to
memory; the backward pass computes them again. Dao et al. (2022), "FlashAttention", extended by
the distances of Dai et al. (2019): the shift of a tile's scores is a roll of its rows.

Shape letters used in this module: B rows, T segment length, K key length with padding, N heads,
H head width, G columns of a group of heads, P rows of the table of distances with padding,
A queries and C keys of a tile, W distances of a tile; in inference S keys of the segment with
padding, P places of memory, R rows of the table of distances.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from txl_tf.functional import MASKED_SCORE
from txl_tf.tpu_kernels.attention_plan import AttentionPlan, InferencePlan
from txl_tf.tpu_kernels.attention_tile import KernelBlocks, KernelProgram, merged, only


def forward(plan: AttentionPlan, is_interpreted: bool = False) -> Callable[..., Any]:
    """Makes the kernel of the forward pass, a function of padded arrays.

    It takes int32 scalars `(B * S)`, queries `(B, T, N * H)`, keys and values `(B, K, N * H)`,
    distances `(P, N * H)`, float32 biases `(2, N * H)` and, where queries have their own starts,
    the first keys `(B, T / A, 1, A)`. It returns the attended values `(B, T, N * H)` and the
    logarithm of the sum of exponentials of the scores, float32 `(B, T / A, N * H / G, G / H, A)`.
    `is_interpreted` runs it as plain operations, on any device.
    """
    blocks = KernelBlocks(plan)
    outputs = [blocks.queries, blocks.log_sums]
    kernel, flops = functools.partial(_forward_kernel, plan), plan.forward_flops
    return blocks.call(kernel, blocks.inputs, outputs, [], flops, is_interpreted)


def backward(plan: AttentionPlan, is_interpreted: bool = False) -> Callable[..., Any]:
    """Makes the kernel of the backward pass, a function of padded arrays.

    It takes the arguments of the forward pass, its two results, and the gradient of the first. It
    returns the gradients of queries, keys, values, distances and, in float32, of the biases.
    """
    blocks = KernelBlocks(plan)
    inputs = [*blocks.inputs, blocks.queries, blocks.log_sums, blocks.queries]
    outputs = [blocks.queries, blocks.keys, blocks.keys, blocks.distances, blocks.biases]
    width = plan.group_width
    lengths = plan.padded_key_length, plan.padded_key_length, plan.table_length
    scratch = [pltpu.VMEM((length, width), jnp.float32) for length in lengths]
    kernel, flops = functools.partial(_backward_kernel, plan), plan.backward_flops
    return blocks.call(kernel, inputs, outputs, scratch, flops, is_interpreted)


class QueriesOfTile:
    """Both queries of a tile, by head, and the softmax over their keys.

    `query` is `(A, G)`; `biases` refers to float32 `(2, G)`, `distances` to `(P, G)`.
    """

    def __init__(self, program: KernelProgram, query: Any, biases: Any, distances: Any) -> None:
        self._program = program
        self._distances = distances
        self._content = program.tile.queries(query, biases[0:1, :])  # [A, G]
        self._position = program.tile.queries(query, biases[1:2, :])

    def start(self) -> tuple[Any, Any, Any]:
        """Returns the maximum score, the sum of weights and the weighted values before all keys."""
        plan = self._program.plan
        column = plan.block_queries, 1
        # A tile without a visible key leaves sums that the next tile scales to 0.
        largest = jnp.full(column, MASKED_SCORE, jnp.float32)
        sums = jnp.zeros((plan.block_queries, plan.group_width), jnp.float32)
        return largest, jnp.zeros(column, jnp.float32), sums

    def attend(
        self, head: int, state: tuple[Any, Any, Any], program: KernelProgram, tiles: "KeyTiles"
    ) -> tuple[Any, Any, Any]:
        """Continues the softmax of a head over tiles of keys, from `start` or an earlier call.

        The tiles of `program` have the size of `tiles`.
        """
        tile = program.tile
        program.at_head(head)
        is_of_head = tile.is_of_head(head)
        content, position = (only(is_of_head, each) for each in (self._content, self._position))

        def step(block: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            largest, total, sums = state
            keys = program.key_rows(block - tiles.num_before)
            rows = program.distance_rows(block)
            scores = tile.scores(content, position, tiles.key[0, keys, :], self._distances[rows, :])
            scores = program.masked(scores, block)
            next_largest = jnp.maximum(largest, jnp.max(scores, axis=1, keepdims=True))
            faded = jnp.exp(largest - next_largest)
            weights = jnp.exp(scores - next_largest)
            total = total * faded + jnp.sum(weights, axis=1, keepdims=True)
            weights = program.dropped(weights, block)
            sums = sums * faded + tile.product(weights, tiles.value[0, keys, :])
            return next_largest, total, sums

        return jax.lax.fori_loop(tiles.first, tiles.end, step, state)


class KeyTiles(NamedTuple):
    """Range of tiles of keys and values, counted over all keys, and its offset in a reference."""

    key: Any
    value: Any
    first: Any
    end: Any
    num_before: int = 0


def _forward_kernel(plan: AttentionPlan, scalars: Any, *references: Any) -> None:
    """Attends from one tile of queries to all keys that they see."""
    query, key, value, distances, biases, *first_keys, attended, log_sums = references
    program = KernelProgram(plan, scalars, first_keys[0] if first_keys else None)
    tile = program.tile
    queries = QueriesOfTile(program, query[0], biases, distances)
    tiles = KeyTiles(key, value, program.first_tile, program.end_tile)
    results = jnp.zeros((plan.block_queries, plan.group_width), jnp.float32)
    for head in range(plan.heads_per_group):
        largest, total, sums = queries.attend(head, queries.start(), program, tiles)
        results = merged(tile.is_of_head(head), sums / total, results)
        log_sums[0, 0, 0, head : head + 1, :] = tile.as_row(largest + jnp.log(total))
    attended[0] = results.astype(attended.dtype)


class _Backward(NamedTuple):
    """References that the backward pass reads, writes and keeps on the chip."""

    query: Any
    key: Any
    value: Any
    distances: Any
    biases: Any
    attended: Any
    log_sums: Any
    gradient: Any
    query_gradient: Any
    key_gradient: Any
    value_gradient: Any
    distance_gradient: Any
    bias_gradient: Any
    key_sums: Any
    value_sums: Any
    distance_sums: Any


class _BackwardOfHead:
    """Backward pass of one head and tile of queries, over tiles of keys."""

    def __init__(
        self, program: KernelProgram, at: _Backward, queries: tuple[Any, Any, Any], head: int
    ) -> None:
        self._program, self._tile, self._at = program, program.tile, at
        self._head = head
        self._is_of_head = program.tile.is_of_head(head)
        self._content, self._position, self._turned = (
            only(self._is_of_head, each) for each in queries
        )
        self._outer = only(self._is_of_head, at.gradient[0])
        self._log_sum = program.tile.as_column(at.log_sums[0, 0, 0, head : head + 1, :])

    def add_to(self, totals: tuple[Any, Any]) -> tuple[Any, Any]:
        """Adds the gradients `(A, G)` of all tiles to the totals; columns of other heads stay.

        The first total is of queries for contents, the second of queries for positions, in
        reverse order.
        """
        program = self._program
        program.at_head(self._head)
        expected = self._expected()
        zeros = tuple(map(jnp.zeros_like, totals))
        sums = jax.lax.fori_loop(
            program.first_tile,
            program.end_tile,
            lambda block, state: self._step(block, state, expected),
            zeros,
        )
        of_content, of_position = (
            merged(self._is_of_head, new, old) for new, old in zip(sums, totals, strict=True)
        )
        return of_content, of_position

    def _weighed(self, block: Any) -> tuple[Any, Any]:
        """Returns the probabilities of a tile, and the gradients of the values that they weight."""
        at, program = self._at, self._program
        keys, rows = program.key_rows(block), program.distance_rows(block)
        scores = self._tile.scores(
            self._content, self._position, at.key[0, keys, :], at.distances[rows, :]
        )
        weights = jnp.exp(program.masked(scores, block) - self._log_sum)
        inner = self._tile.product_of_rows(self._outer, at.value[0, keys, :])
        return weights, program.dropped(inner, block)

    def _expected(self) -> Any:
        """Returns the mean of the gradients weighted by the probabilities, `(A, 1)`."""
        program = self._program
        if not program.plan.sums_twice:
            attended = self._at.attended[0].astype(jnp.float32)
            products = self._outer.astype(jnp.float32) * attended
            return jnp.sum(products, axis=1, keepdims=True)

        def add(block: Any, total: Any) -> Any:
            weights, inner = self._weighed(block)
            return total + jnp.sum(weights * inner, axis=1, keepdims=True)

        # Rounded like the gradients it is subtracted from: with all weight on one key, nothing is
        # left.
        start = jnp.zeros_like(self._log_sum)
        return jax.lax.fori_loop(program.first_tile, program.end_tile, add, start)

    def _step(self, block: Any, state: tuple[Any, Any], expected: Any) -> tuple[Any, Any]:
        at, program, tile = self._at, self._program, self._tile
        keys, rows = program.key_rows(block), program.distance_rows(block)
        weights, inner = self._weighed(block)
        kept = program.dropped(weights, block)
        at.value_sums[keys, :] += tile.product_over_rows(kept, self._outer)
        changes = weights * (inner - expected)  # of the scores, [A, C]
        at.key_sums[keys, :] += tile.product_over_rows(changes, self._content)
        by_distance = tile.gradients_by_distance(changes)  # [A, W]
        at.distance_sums[rows, :] += tile.product_over_rows(by_distance, self._turned)
        of_content, of_position = state
        return (
            of_content + tile.product(changes, at.key[0, keys, :]),
            of_position + tile.product(by_distance, at.distances[rows, :]),
        )


def _backward_kernel(plan: AttentionPlan, scalars: Any, *references: Any) -> None:
    """Adds the gradients of one tile of queries, and of the keys that they see.

    A row has sums of its keys and values; all rows share sums of distances and biases.
    """
    num_inputs = 6 if plan.has_query_starts else 5
    first_keys = references[5] if plan.has_query_starts else None
    at = _Backward(*references[:5], *references[num_inputs:])
    program = KernelProgram(plan, scalars, first_keys)
    tile = program.tile

    @pl.when(program.block == 0)
    def _() -> None:
        for sums in (at.key_sums, at.value_sums):
            sums[...] = jnp.zeros_like(sums)

    @pl.when(jnp.logical_and(program.block == 0, pl.program_id(1) == 0))
    def _() -> None:
        for sums in (at.distance_sums, at.bias_gradient):
            sums[...] = jnp.zeros_like(sums)

    position_query = tile.queries(at.query[0], at.biases[1:2, :])  # [A, G]
    turned_query = tile.reversed_rows(position_query).astype(tile.dtype)
    queries = tile.queries(at.query[0], at.biases[0:1, :]), position_query, turned_query
    zeros = jnp.zeros((plan.block_queries, plan.group_width), jnp.float32)
    totals = zeros, zeros
    for head in range(plan.heads_per_group):
        totals = _BackwardOfHead(program, at, queries, head).add_to(totals)
    of_content, of_position = map(tile.gradient_of_query, totals)
    at.bias_gradient[0:1, :] += jnp.sum(of_content, axis=0, keepdims=True)
    at.bias_gradient[1:2, :] += jnp.sum(of_position, axis=0, keepdims=True)
    total = of_content + tile.reversed_rows(of_position)
    at.query_gradient[0] = total.astype(at.query_gradient.dtype)
    is_last_tile = program.block == plan.num_query_blocks - 1

    @pl.when(is_last_tile)
    def _() -> None:
        at.key_gradient[0] = at.key_sums[...].astype(at.key_gradient.dtype)
        at.value_gradient[0] = at.value_sums[...].astype(at.value_gradient.dtype)

    @pl.when(jnp.logical_and(pl.program_id(1) == plan.num_rows - 1, is_last_tile))
    def _() -> None:
        at.distance_gradient[...] = at.distance_sums[...].astype(at.distance_gradient.dtype)


def inference_kernel(plan: InferencePlan, is_interpreted: bool = False) -> Callable[..., Any]:
    """Makes the kernel of inference, a function of padded arrays, which also moves memory on.

    Keys of memory and segment stay separate: on a TPU, concatenating them and slicing the next
    memory takes longer than attention. The next memory is written from the data already on the
    chip.

    It takes int32 scalars, queries `(B, T, N * H)`, keys and values of the segment
    `(B, S, N * H)`, keys and values of memory `(B, P, N * H)`, distances `(R, N * H)`, float32
    biases `(2, N * H)` and, where queries have their own starts, the first keys
    `(B, T / A, 1, A)`. It returns the attended values `(B, T, N * H)` and, where the plan writes
    memory, its next keys and values. `is_interpreted` runs it as plain operations, on any device.
    """
    blocks = KernelBlocks(plan)
    segment, memory = map(blocks.of_keys, (plan.segment_key_length, plan.memory_length))
    inputs = [blocks.queries, segment, segment, memory, memory]
    # The table, the biases and the first keys are as in the other kernels.
    inputs += blocks.inputs[3:]
    outputs = [blocks.queries, *([memory, memory] if plan.writes_memory else [])]
    kernel = functools.partial(_inference_kernel, plan)
    return blocks.call(kernel, inputs, outputs, [], plan.forward_flops, is_interpreted)


def _inference_kernel(plan: InferencePlan, scalars: Any, *references: Any) -> None:
    """Attends from a tile of queries to memory and segment; the first writes the next memory."""
    num_inputs = 8 if plan.has_query_starts else 7
    inputs, (attended, *next_memory) = references[:num_inputs], references[num_inputs:]
    query, key, value, memory_key, memory_value, distances, biases, *first_keys = inputs
    starts = first_keys[0] if first_keys else None
    of_memory = KernelProgram(plan, scalars, starts)
    of_segment = KernelProgram(plan.of_segment, scalars, starts)
    memory_tiles, segment_tiles = (
        plan.memory_length // each.block_keys for each in (plan, plan.of_segment)
    )
    parts = [
        (of_memory, KeyTiles(memory_key, memory_value, of_memory.first_tile, memory_tiles)),
        (
            of_segment,
            KeyTiles(
                key,
                value,
                jnp.maximum(of_segment.first_tile, segment_tiles),
                of_segment.end_tile,
                num_before=segment_tiles,
            ),
        ),
    ]
    queries = QueriesOfTile(of_memory, query[0], biases, distances)
    results = jnp.zeros((plan.block_queries, plan.group_width), jnp.float32)
    for head in range(plan.heads_per_group):
        state = queries.start()
        for program, tiles in parts:
            state = queries.attend(head, state, program, tiles)
        _, total, sums = state
        results = merged(of_memory.tile.is_of_head(head), sums / total, results)
    attended[0] = results.astype(attended.dtype)
    if plan.writes_memory:
        pairs = zip(next_memory, (memory_key, memory_value), (key, value), strict=True)
        pl.when(of_memory.block == 0)(functools.partial(_move_on, plan, list(pairs)))


def _move_on(plan: InferencePlan, references: list[tuple[Any, Any, Any]]) -> None:
    """Writes the last places of memory and segment as the next memory."""
    num_new = min(plan.segment_length, plan.memory_length)
    num_kept = plan.memory_length - num_new
    for result, memory, segment in references:
        if num_kept:
            result[0, :num_kept, :] = memory[0, num_new:, :]
        result[0, num_kept:, :] = segment[0, plan.segment_length - num_new : plan.segment_length, :]
