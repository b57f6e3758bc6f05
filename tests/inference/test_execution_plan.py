"""The plan for a device follows its kind, the rows and the width."""

from tests.small_models import toy_experiment
from txl_tf.inference.engine import InferenceEngine
from txl_tf.inference.execution_plan import ExecutionPlan
from txl_tf.layers.attention.operators import AllHeads, HeadByHead
from txl_tf.models.transformer_xl import TransformerXL

NARROW = toy_experiment().model
WIDE = NARROW.replace(hidden_dim=512)


def plan(config=WIDE, device="CPU", num_rows=1, **options):
    return ExecutionPlan.choose(config, device=device, num_rows=num_rows, **options)


def test_a_single_row_on_a_cpu_is_read_head_by_head_without_xla():
    for config in (NARROW, WIDE):
        chosen = plan(config)
        assert (chosen.operator, chosen.compile_read) == (HeadByHead(), False)
        assert chosen.segments_per_read(1, 8) == 128
    assert plan(jit_compile=True).operator == AllHeads()
    assert InferenceEngine(TransformerXL(NARROW), num_rows=1).plan == plan(NARROW)


def test_otherwise_rows_and_heads_are_read_together_and_compiled_where_that_is_faster():
    for options in ({"num_rows": 2}, {"num_rows": None}, {"device": "GPU"}):
        chosen = plan(**options)
        assert chosen.operator == AllHeads()
        assert [chosen.segments_per_read(num_rows, 8) for num_rows in (1, 2, 64)] == [32, 16, 1]
        assert plan(keeps_states=True, **options).segments_per_read(1, 8) == 1
    assert plan(NARROW, num_rows=4).compile_read
    assert not plan(WIDE, num_rows=4).compile_read
    assert plan(WIDE, "GPU").compile_read and plan(WIDE, "TPU").compile_read
    assert not plan(WIDE, "TPU", is_distributed=True).compile_read  # the strategy compiles
    assert plan(WIDE, writes=True).compile_step and not plan(WIDE, writes=True).compile_read
    assert not plan(NARROW, num_rows=4, jit_compile=False).compile_read


def test_rows_are_written_with_rounded_numbers_where_they_exceed_the_caches():
    sizes = {"num_heads": 8, "head_dim": 64, "num_layers": 12, "intermediate_dim": 2048}
    large = {"config": WIDE.replace(**sizes), "storage_dtype": "auto"}
    large |= {"writes": True, "memory_length": 1600}
    assert plan(**large).rounds_steps
    for other in ({"config": NARROW}, {"storage_dtype": "float32"}, {"memory_length": 1599}):
        chosen = plan(**{**large, **other})
        assert chosen.stacks_layers and not chosen.rounds_steps
    assert plan(**large, num_rows=8).rounds_steps
    for other in ({"device": "GPU"}, {"jit_compile": False}, {"memory_length": 0}):
        chosen = plan(**{**large, **other})
        assert not chosen.stacks_layers and not chosen.rounds_steps
