"""Sizes of the attention kernels of training and of inference, without the kernels."""

import pytest

from txl_tf.tpu_kernels.attention_plan import AttentionKernel, AttentionPlan
from txl_tf.tpu_kernels.inference_plan import InferencePlan, places_of, tile_of

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
        first, end = plan.key_blocks_of_queries(block)
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


def test_long_memories_fit_longer_ones_without_a_backward_pass_and_too_long_ones_are_refused():
    sizes = {**SIZES, "head_dim": 128, "segment_length": 768}
    short, long = (AttentionPlan(**sizes, memory_length=length) for length in (128, 3800))
    assert 16 <= short.vmem_limit_bytes / 2**20 < long.vmem_limit_bytes / 2**20 <= 64
    assert InferencePlan(**sizes, memory_length=32_768).vmem_limit_bytes <= 120 * 2**20
    for plan, memory_length in ((AttentionPlan, 32_768), (InferencePlan, 65_536)):
        with pytest.raises(ValueError, match="the chip has"):
            plan(**sizes, memory_length=memory_length)


@pytest.mark.parametrize("memory_length", [0, 1, 128, 129, 600, 1600, 2000, 3800, 8000])
def test_places_are_whole_tiles_and_few_are_unused(memory_length):
    places = places_of(memory_length)
    assert max(memory_length, 128) <= places < memory_length + 5 * 128
    assert places % 128 == places % tile_of(places, 1536) == 0
    # A memory of a prime number of registers would have the smallest tiles.
    assert tile_of(places, 1536) >= min(384, places)


@pytest.mark.parametrize("num_tokens", [1, 16, 100, 128, 300, 1024])
@pytest.mark.parametrize("memory_length", [0, 128, 1600, 3800])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("tiles", [{}, {"max_block_queries": 32, "max_block_keys": 128}])
def test_tiles_cover_all_keys_and_read_inside_the_table(num_tokens, memory_length, dtype, tiles):
    sizes = {**SIZES, "dtype": dtype, "segment_length": num_tokens}
    sizes["kernel"] = AttentionKernel(**tiles)
    plan = InferencePlan(**sizes, memory_length=places_of(memory_length))
    segment = plan.of_segment
    # Both parts count keys and distances alike.
    for name in ("padded_memory_length", "padded_segment_length", "padded_key_length"):
        assert getattr(plan, name) == getattr(segment, name)
    assert plan.padded_memory_length == plan.memory_length
    assert segment.block_keys == plan.segment_block_keys
    for part in (plan, segment):
        assert plan.memory_length % part.block_keys == 0
        for block in range(plan.num_query_blocks):
            _, end = part.key_blocks_of_queries(block)
            start = plan.padded_segment_length - (block + 1) * plan.block_queries
            assert start % 16 == 0  # rows of a register
            assert start + (end - 1) * part.block_keys + part.window <= plan.table_length
            keys_end = plan.memory_length + plan.segment_key_length
            assert part is plan or end * part.block_keys <= keys_end
            assert plan.memory_length + (block + 1) * plan.block_queries <= end * part.block_keys
