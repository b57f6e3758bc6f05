"""Sizes of the attention kernel, without the kernel."""

import pytest

from txl_tf.tpu_kernels.attention_plan import AttentionPlan

SIZES = {"num_rows": 2, "num_heads": 8, "head_dim": 64, "dtype": "bfloat16"}
LENGTHS = [(1, 0), (1, 1), (32, 32), (70, 70), (150, 150), (384, 384), (768, 768), (64, 640)]
LENGTHS += [(500, 3), (128, 3800), (768, 3800), (4096, 0)]


@pytest.mark.parametrize(("segment_length", "memory_length"), LENGTHS)
@pytest.mark.parametrize("farthest", [None, 0, 100])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_tiles_cover_all_that_queries_see_and_read_inside_the_table(
    segment_length, memory_length, farthest, dtype
):
    lengths = {"segment_length": segment_length, "memory_length": memory_length}
    plan = AttentionPlan(**{**SIZES, "dtype": dtype}, **lengths, farthest=farthest)
    before = plan.padded_memory_length - memory_length
    assert before >= 0
    assert plan.padded_segment_length % plan.block_queries == 0
    assert plan.padded_key_length % plan.block_keys == 0
    assert plan.block_keys % 128 == plan.window % 128 == 0
    assert plan.window >= plan.block_queries + plan.block_keys - 1
    for block in range(plan.num_query_blocks):
        first, end = plan.query_blocks_of_keys(block)
        first_query = block * plan.block_queries
        last_query = min(first_query + plan.block_queries, segment_length) - 1
        oldest = 0 if farthest is None else max(0, memory_length + first_query - farthest)
        assert first * plan.block_keys <= before + oldest
        assert before + memory_length + last_query < end * plan.block_keys
        assert end * plan.block_keys <= plan.padded_key_length
        start = plan.padded_segment_length - first_query - plan.block_queries
        assert start % 16 == 0  # rows of a register
        last_start = start + (end - 1) * plan.block_keys
        assert start + first * plan.block_keys >= 0
        assert last_start + plan.window <= plan.table_length


def test_long_memories_ask_for_more_of_the_chip_and_too_long_ones_are_refused():
    sizes = {**SIZES, "head_dim": 128, "segment_length": 768}
    short, long = (AttentionPlan(**sizes, memory_length=length) for length in (128, 3800))
    assert 16 <= short.vmem_limit_bytes / 2**20 < long.vmem_limit_bytes / 2**20 <= 64
    with pytest.raises(ValueError, match="on the chip"):
        AttentionPlan(**sizes, memory_length=40_000)
    with pytest.raises(ValueError, match="must be positive"):
        AttentionPlan(**{**sizes, "num_rows": 0}, memory_length=0)
