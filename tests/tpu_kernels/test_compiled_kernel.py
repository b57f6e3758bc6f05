"""Attention kernel through the TPU compiler: sizes of the published models, long memories."""

import functools
import importlib.util

import pytest
import tensorflow as tf

from txl_tf.tpu_compiler.compiler import TpuCompiler
from txl_tf.tpu_compiler.lowered_program import lower
from txl_tf.tpu_compiler.topologies import Topology
from txl_tf.tpu_kernels.attention_call import argument_shapes, attend, attend_in_inference
from txl_tf.tpu_kernels.attention_plan import AttentionPlan
from txl_tf.tpu_kernels.inference_plan import InferencePlan, places_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None, reason="the extra tpu-compile is not installed"
    ),
]
LARGE = {"num_rows": 4, "segment_length": 768, "memory_length": 768, "num_heads": 8}
LARGE |= {"head_dim": 128, "dtype": "bfloat16", "dropout": 0.1}
NARROW = {"num_rows": 8, "segment_length": 384, "memory_length": 384, "num_heads": 16}
ODD = {"num_rows": 2, "segment_length": 150, "memory_length": 150, "num_heads": 10, "head_dim": 41}
PLANS = {
    "enwik8_large": ("v5e:2x2", LARGE),
    "later chip": ("v6e:2x2", LARGE),
    "long memory": ("v5e:2x2", {**LARGE, "memory_length": 3800}),
    "float32": ("v5e:2x2", {**LARGE, "dtype": "float32"}),
    "documents": ("v5e:2x2", {**LARGE, "has_query_starts": True, "farthest": 700}),
    "wikitext103_large": ("v5e:2x2", {**LARGE, **NARROW, "head_dim": 64}),
    "wikitext103_base": ("v5e:2x2", {**LARGE, **ODD}),
}


READ = {**LARGE, "segment_length": 1024, "memory_length": places_of(3800), "num_rows": 1}
del READ["dropout"]
INFERENCE_PLANS = {
    "enwik8_large": ("v5e:2x2", READ),
    "later chip": ("v6e:2x2", READ),
    "longest": ("v5e:2x2", {**READ, "memory_length": 32_768}),
    "float32": ("v5e:2x2", {**READ, "dtype": "float32"}),
    "documents": ("v5e:2x2", {**READ, "has_query_starts": True, "farthest": 700}),
    "wikitext103_large": ("v5e:2x2", {**READ, **NARROW, "head_dim": 64, "memory_length": 1792}),
    "wikitext103_base": ("v5e:2x2", {**READ, **ODD, "memory_length": 640}),
    "one segment": ("v5e:2x2", {**READ, "num_rows": 8, "segment_length": 128}),
}


@pytest.mark.parametrize("name", INFERENCE_PLANS)
def test_reading_with_a_memory_compiles_and_copies_nothing(name):
    topology, sizes = INFERENCE_PLANS[name]
    plan = InferencePlan(**sizes)
    specs = [tf.TensorSpec(*each) for each in argument_shapes(plan, "inference")]
    program = lower(functools.partial(attend_in_inference, plan), specs)
    assert program.hlo.count(b"tpu_custom_call") == 1
    compiled = TpuCompiler(Topology.parse(topology), generates_code=True).compile(program, name)
    assert compiled.fits
    assert compiled.flops == plan.forward_flops
    # Padded copies, and arrays that the compiler moves to the chip ahead.
    assert compiled.temporary_bytes < compiled.argument_bytes / 2


@pytest.mark.parametrize("name", PLANS)
def test_both_passes_compile_and_keep_no_scores_in_memory(name):
    topology, sizes = PLANS[name]
    plan = AttentionPlan(**sizes)

    def run(*arguments):
        constants, inputs, gradient = arguments[:2], arguments[2:7], arguments[-1]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            attended = attend(plan, *constants, *inputs)
        return attended, tape.gradient(attended, inputs, gradient)

    shapes = argument_shapes(plan, "backward")
    del shapes[7:9]  # the results of the forward pass
    program = lower(run, [tf.TensorSpec(shape, dtype) for shape, dtype in shapes])
    assert program.hlo.count(b"tpu_custom_call") == 2
    compiled = TpuCompiler(Topology.parse(topology), generates_code=True).compile(program, name)
    assert compiled.fits
    assert compiled.flops == plan.forward_flops + plan.backward_flops
    # Besides arguments there are padded copies and the logarithms of sums; the scores
    # of the large models would take more.
    assert compiled.temporary_bytes < compiled.argument_bytes
