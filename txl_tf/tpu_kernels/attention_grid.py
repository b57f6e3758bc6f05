"""Grid of the attention kernels, and the blocks of their arguments and results.

Shape letters used in this module: B rows, T segment length, K key length, N heads, H head width,
G columns of a group of heads, A queries of a tile, R rows of the table of distances; in inference
P places of memory, S keys of the segment. T, K, S and R include padding.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from txl_tf.tpu_kernels.attention_kernels import (
    backward_kernel,
    forward_kernel,
    inference_kernel,
)
from txl_tf.tpu_kernels.attention_plan import LANES, AttentionPlan, rounded_up
from txl_tf.tpu_kernels.inference_plan import InferencePlan

Direction = Literal["forward", "backward", "inference"]

_KERNELS: dict[Direction, Callable[..., None]] = {
    "forward": forward_kernel,
    "backward": backward_kernel,
    "inference": inference_kernel,
}
# libtpu looks for the function of a kernel by this name.
_KERNEL_NAME = "main"


@dataclasses.dataclass(frozen=True)
class _Block:
    """Division of an argument or result of a kernel into blocks.

    `shape` is the shape of the whole array, and `block` the shape of the part that one run of the
    kernel has on the chip. `place` maps the indices of the grid to the indices of this part, which
    count in blocks.
    """

    shape: tuple[int, ...]
    block: tuple[int, ...]
    dtype: str
    place: Callable[..., tuple[int, ...]]

    def moved_bytes(self, grid: Sequence[int]) -> int:
        """Counts the bytes that a kernel moves, with rows padded to whole registers.

        The runs of a kernel follow the grid, whose last axis changes fastest. A block is moved
        whenever the next run needs another one.
        """
        places = (self.place(*index) for index in itertools.product(*map(range, grid)))
        num_moves = sum(1 for _ in itertools.groupby(places))
        row_bytes = rounded_up(self.block[-1], LANES) * jnp.dtype(self.dtype).itemsize
        return num_moves * math.prod(self.block[:-1]) * row_bytes


def _blocks_of(plan: AttentionPlan, direction: Direction) -> tuple[list[_Block], list[_Block]]:
    """Returns the blocks of the inputs and of the results, in the order of a kernel's references.

    The functions `place` get the indices of the grid: `n` of a group of heads, `b` of a row, `i` of
    a tile of queries.
    """
    rows, width, columns = plan.num_rows, plan.group_width, plan.num_heads * plan.head_dim
    tile, heads, table = plan.block_queries, plan.heads_per_group, plan.table_length

    def of_keys(length: int) -> _Block:
        return _Block(
            (rows, length, columns),
            (1, length, width),
            plan.dtype,
            lambda n, b, i, *_: (b, 0, n),
        )

    queries = _Block(
        (rows, plan.padded_segment_length, columns),
        (1, tile, width),
        plan.dtype,
        lambda n, b, i, *_: (b, i, n),
    )
    keys = of_keys(plan.padded_key_length)
    distances = _Block((table, columns), (table, width), plan.dtype, lambda n, b, i, *_: (0, n))
    biases = _Block((2, columns), (2, width), "float32", lambda n, b, i, *_: (0, n))
    first_keys = _Block(
        (rows, plan.num_query_blocks, 1, tile),
        (1, 1, 1, tile),
        "int32",
        lambda n, b, i, *_: (b, i, 0, 0),
    )
    log_sums = _Block(
        (rows, plan.num_query_blocks, plan.num_groups, heads, tile),
        (1, 1, 1, heads, tile),
        "float32",
        lambda n, b, i, *_: (b, i, n, 0, 0),
    )
    of_all = [distances, biases, *([first_keys] if plan.has_query_starts else [])]
    if isinstance(plan, InferencePlan):
        segment, memory = map(of_keys, (plan.segment_key_length, plan.memory_length))
        inputs = [queries, segment, segment, memory, memory, *of_all]
        return inputs, [queries, *([memory, memory] if plan.writes_memory else [])]
    inputs = [queries, keys, keys, *of_all]
    if direction == "forward":
        return inputs, [queries, log_sums]
    return [*inputs, queries, log_sums, queries], [queries, keys, keys, distances, biases]


def kernel_of(plan: AttentionPlan, direction: Direction) -> Callable[..., Any]:
    """Makes a kernel, a function of scalars of each row and of padded arrays.

    `attention_call` describes the scalars. The arrays are queries `(B, T, N * H)`, keys and
    values `(B, K, N * H)`, distances `(R, N * H)`, float32 biases `(2, N * H)` and, where queries
    have their own starts, the first keys `(B, T / A, 1, A)`. `forward` returns the attended values
    `(B, T, N * H)` and the logarithm of the sum of exponentials of the scores, float32
    `(B, T / A, N * H / G, G / H, A)`. `backward` also takes these two results and the gradient of
    the attended values. It returns the gradients of queries, keys, values, distances and, in
    float32, of the biases.

    `inference` takes keys and values twice: of the segment `(B, S, N * H)` and of memory
    `(B, P, N * H)`. It returns the attended values and, if the plan writes memory, the keys and
    values of the next memory.
    """
    # In this order of the grid, the distances of a group are loaded once, and the keys and values
    # of a row once for each group.
    grid = plan.num_groups, plan.num_rows, plan.num_query_blocks
    inputs, outputs = _blocks_of(plan, direction)
    flops, sum_lengths = plan.forward_flops, ()
    if direction == "backward":
        flops = plan.backward_flops
        # The sums of the gradients of keys, values and distances.
        sum_lengths = plan.padded_key_length, plan.padded_key_length, plan.table_length
    return pl.pallas_call(
        functools.partial(_KERNELS[direction], plan),
        name=_KERNEL_NAME,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=grid,
            in_specs=[pl.BlockSpec(each.block, each.place) for each in inputs],
            out_specs=[pl.BlockSpec(each.block, each.place) for each in outputs],
            scratch_shapes=[
                pltpu.VMEM((length, plan.group_width), jnp.float32) for length in sum_lengths
            ],
        ),
        out_shape=[jax.ShapeDtypeStruct(each.shape, each.dtype) for each in outputs],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary"),
            vmem_limit_bytes=plan.vmem_limit_bytes,
        ),
        cost_estimate=pl.CostEstimate(
            flops=flops,
            transcendentals=plan.num_exponentials,
            bytes_accessed=sum(each.moved_bytes(grid) for each in (*inputs, *outputs)),
        ),
        interpret=plan.kernel.platform != "tpu",
    )
