"""Pallas kernel of relative attention that also writes the next memory of keys and values.

Keys of memory and segment stay separate: on a TPU, concatenating them and slicing the next
memory takes longer than attention. The next memory is written from the data already on the
chip.

Shape letters used in this module: B rows, T segment length, P places of memory, S keys of the
segment with padding, N heads, H head width, G columns of a group of heads, R rows of the table
of distances, A queries of a tile.
"""

import functools
from collections.abc import Callable
from typing import Any

from jax import numpy as jnp
from jax.experimental import pallas as pl

from txl_tf.tpu_kernels.attention_kernels import KeyTiles, QueriesOfTile
from txl_tf.tpu_kernels.inference_plan import InferencePlan
from txl_tf.tpu_kernels.kernel_grid import KernelBlocks, KernelProgram, merged
from txl_tf.tpu_kernels.row_scalars import first_keys_of_tiles, row_scalars


def inference_kernel(plan: InferencePlan, is_interpreted: bool = False) -> Callable[..., Any]:
    """Makes the kernel, a function of padded arrays.

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
    kernel = functools.partial(_kernel, plan)
    return blocks.call(kernel, inputs, outputs, [], plan.forward_flops, is_interpreted)


def _kernel(plan: InferencePlan, scalars: Any, *references: Any) -> None:
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


def inference_function(plan: InferencePlan, is_interpreted: bool = False) -> Callable[..., Any]:
    """Makes the kernel as a function of arrays without padding, with the kernel's results.

    It takes the first visible keys, int32 `(B,)` or with starts of queries `(B, T)`; queries,
    keys and values of the segment `(B, T, N * H)`; keys and values of memory `(B, P, N * H)`;
    distances `(R, N * H)`; and float32 biases `(2, N * H)`.
    """
    kernel = inference_kernel(plan, is_interpreted)

    def run(
        first_keys: Any,
        query: Any,
        key: Any,
        value: Any,
        memory_key: Any,
        memory_value: Any,
        distances: Any,
        biases: Any,
    ) -> Any:
        of_tiles = first_keys_of_tiles(plan, first_keys)
        nothing_drawn = jnp.zeros((2, plan.num_rows), jnp.int32)
        scalars = row_scalars(plan, first_keys, of_tiles, nothing_drawn)
        segment = [_padded(each, plan.segment_key_length) for each in (key, value)]
        arrays = [_padded(query, plan.padded_segment_length), *segment]
        arrays += [memory_key, memory_value, distances, biases]
        arrays += [of_tiles] if plan.has_query_starts else []
        attended, *next_memory = kernel(scalars, *arrays)
        return attended[:, : plan.segment_length], *next_memory

    return run


def inference_shapes(plan: InferencePlan) -> list[tuple[Any, str]]:
    """Returns shape and dtype of each argument of `inference_function`."""
    rows, width = plan.num_rows, plan.num_heads * plan.head_dim
    first_keys = (rows, plan.segment_length) if plan.has_query_starts else (rows,)
    segment = (rows, plan.segment_length, width), plan.dtype
    memory = (rows, plan.memory_length, width), plan.dtype
    table = (plan.table_length, width), plan.dtype
    shapes: list[tuple[Any, str]] = [(first_keys, "int32"), segment, segment, segment]
    return [*shapes, memory, memory, table, ((2, width), "float32")]


def _padded(array: Any, length: int) -> Any:
    return jnp.pad(array, [(0, 0), (0, length - array.shape[1]), (0, 0)])
