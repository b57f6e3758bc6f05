"""Bytes that blocks move, and that the kernels say what their blocks move."""

import itertools
import math

import pytest
from jax.experimental import pallas as pl

from txl_tf.tpu_kernels import attention_kernels
from txl_tf.tpu_kernels.attention_plan import AttentionPlan
from txl_tf.tpu_kernels.block_traffic import Block, moved_bytes
from txl_tf.tpu_kernels.inference_kernel import inference_kernel
from txl_tf.tpu_kernels.inference_plan import InferencePlan


def test_a_block_moves_when_another_one_is_needed():
    stays = Block((64, 256), (64, 128), "float32", lambda n, i: (0, n))
    moves = Block((64, 256), (32, 128), "bfloat16", lambda n, i: (i, n))
    returns = Block((64, 256), (32, 256), "bfloat16", lambda n, i: (i, 0))
    assert moved_bytes((2, 2), [stays]) == 2 * 64 * 128 * 4
    assert moved_bytes((2, 2), [moves]) == 4 * 32 * 128 * 2
    assert moved_bytes((2, 2), [returns]) == 4 * 32 * 256 * 2  # read twice


def test_narrow_blocks_fill_registers():
    block = Block((8, 2, 40), (1, 2, 40), "float32", lambda n: (n, 0, 0))
    assert moved_bytes((8,), [block]) == 8 * 2 * 128 * 4


MAKERS = [attention_kernels.forward, attention_kernels.backward, inference_kernel]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("has_query_starts", [False, True])
def test_kernels_say_what_the_specifications_of_their_blocks_move(
    monkeypatch, make, has_query_starts
):
    found = {}
    monkeypatch.setattr(pl, "pallas_call", lambda kernel, **options: found.update(options))
    is_inference = make is inference_kernel
    plan = (InferencePlan if is_inference else AttentionPlan)(
        num_rows=2,
        segment_length=304,
        memory_length=512,
        num_heads=4,
        head_dim=64,
        dtype="bfloat16",
        has_query_starts=has_query_starts,
    )
    make(plan)
    grid, outputs = found["grid_spec"].grid, found["out_shape"]
    specs = [*found["grid_spec"].in_specs, *found["grid_spec"].out_specs]
    # What Pallas is given does not tell the dtypes of arguments: all are bfloat16 but these.
    num_inputs = len(found["grid_spec"].in_specs)
    biases = num_inputs - 1 - has_query_starts
    if make is attention_kernels.backward:
        biases -= 3
    wide = {biases: 4, biases + 1: 4} if has_query_starts else {biases: 4}
    if make is attention_kernels.backward:
        wide[num_inputs - 2] = 4  # the logarithms of sums
    wide |= {num_inputs + index: out.dtype.itemsize for index, out in enumerate(outputs)}
    total = 0
    for index, spec in enumerate(specs):
        block = math.prod(spec.block_shape[:-1]) * -(-spec.block_shape[-1] // 128) * 128
        places = [spec.index_map(*place) for place in itertools.product(*map(range, grid))]
        moves = 1 + sum(a != b for a, b in itertools.pairwise(places))
        total += block * wide.get(index, 2) * moves
    assert found["cost_estimate"].bytes_accessed == total
