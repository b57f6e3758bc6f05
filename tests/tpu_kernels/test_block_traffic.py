"""Bytes that blocks move, and that the kernels say what their blocks move."""

import itertools
import math

import pytest
from jax.experimental import pallas as pl

from txl_tf.tpu_kernels import attention_kernels
from txl_tf.tpu_kernels.attention_plan import AttentionPlan
from txl_tf.tpu_kernels.block_traffic import Block, moved_bytes


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


@pytest.mark.parametrize("make", [attention_kernels.forward, attention_kernels.backward])
@pytest.mark.parametrize("masks_documents", [False, True])
def test_kernels_say_what_the_specifications_of_their_blocks_move(
    monkeypatch, make, masks_documents
):
    found = {}
    monkeypatch.setattr(pl, "pallas_call", lambda kernel, **options: found.update(options))
    plan = AttentionPlan(
        num_rows=2,
        segment_length=300,
        memory_length=500,
        num_heads=4,
        head_dim=64,
        dtype="bfloat16",
        masks_documents=masks_documents,
    )
    make(plan)
    grid, outputs = found["grid_spec"].grid, found["out_shape"]
    specs = [*found["grid_spec"].in_specs, *found["grid_spec"].out_specs]
    # What Pallas is given does not tell the dtypes of arguments: all are bfloat16 but these.
    wide = {4: 4, 5: 4} if masks_documents else {4: 4}
    num_inputs = len(found["grid_spec"].in_specs)
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
