"""Costs of small programs, counted by hand."""

import pytest
from tensorflow.compiler.xla.service import hlo_pb2

from txl_tf.tpu_compiler.costs import ProgramCosts

pytest.importorskip("jaxlib._jax")

# A loop of three turns multiplies and keeps a slice; its result is summed over replicas.
# One operand is copied to the memory on the chip, S(1), before it is used.
PROGRAM = """\
HloModule step, is_scheduled=true, entry_computation_layout={(f32[256,128]{1,0})->f32[128]{0}}

%add.1 (x: f32[], y: f32[]) -> f32[] {
  %x = f32[]{:T(128)} parameter(0)
  %y = f32[]{:T(128)} parameter(1)
  ROOT %sum = f32[]{:T(128)} add(%x, %y)
}

%multiply.1 (p0: f32[256,128], p1: f32[128,64]) -> f32[256,64] {
  %p0 = f32[256,128]{1,0:T(8,128)} parameter(0)
  %p1 = f32[128,64]{1,0:T(8,128)S(1)} parameter(1)
  ROOT %convolution.1 = f32[256,64]{1,0:T(8,128)} convolution(%p0, %p1), dim_labels=bf_io->bf
}

%body.1 (state: (s32[], f32[256,128], f32[128,64])) -> (s32[], f32[256,128], f32[128,64]) {
  %state = (s32[]{:T(128)}, f32[256,128]{1,0:T(8,128)}, f32[128,64]{1,0:T(8,128)}) parameter(0)
  %n = s32[]{:T(128)} get-tuple-element(%state), index=0
  %a = f32[256,128]{1,0:T(8,128)} get-tuple-element(%state), index=1
  %b = f32[128,64]{1,0:T(8,128)} get-tuple-element(%state), index=2
  %one = s32[]{:T(128)} constant(1)
  %next = s32[]{:T(128)S(6)} add(%n, %one), metadata={op_name="while/count"}
  %begun = (f32[128,64]{1,0:T(8,128)S(1)}, f32[128,64]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%b)
  %fast = f32[128,64]{1,0:T(8,128)S(1)} copy-done(%begun)
  %fusion.1 = f32[256,64]{1,0:T(8,128)} fusion(%a, %fast), kind=kOutput, calls=%multiply.1, \
metadata={op_name="model_1/block_3_1/MatMul"}
  ROOT %again = (s32[]{:T(128)}, f32[256,128]{1,0:T(8,128)}, /*index=2*/f32[128,64]{1,0:T(8,128)}) \
tuple(%next, %a, /*index=2*/%b)
}

%condition.1 (state.1: (s32[], f32[256,128], f32[128,64])) -> pred[] {
  %state.1 = (s32[]{:T(128)}, f32[256,128]{1,0:T(8,128)}, f32[128,64]{1,0:T(8,128)}) parameter(0)
  %m = s32[]{:T(128)} get-tuple-element(%state.1), index=0
  %three = s32[]{:T(128)} constant(3)
  ROOT %less = pred[]{:T(512)} compare(%m, %three), direction=LT
}

ENTRY %main.1 (weights.1: f32[256,128], other.1: f32[128,64], wide.1: s64[16]) -> f32[100] {
  %weights.1 = f32[256,128]{1,0:T(8,128)} parameter(0)
  %other.1 = f32[128,64]{1,0:T(8,128)} parameter(1)
  %wide.1 = s64[16]{0:T(128)} parameter(2)
  %zero = s32[]{:T(128)} constant(0)
  %start = (s32[]{:T(128)}, f32[256,128]{1,0:T(8,128)}, f32[128,64]{1,0:T(8,128)}) \
tuple(%zero, %weights.1, %other.1)
  %while.1 = (s32[]{:T(128)}, f32[256,128]{1,0:T(8,128)}, f32[128,64]{1,0:T(8,128)}) \
while(%start), condition=%condition.1, body=%body.1
  %gradient = f32[100]{0:T(128)} custom-call(%while.1), custom_call_target="Reduced"
  ROOT %all-reduce.1 = f32[100]{0:T(128)} all-reduce(%gradient), channel_id=1, \
replica_groups={{0,1,2,3}}, to_apply=%add.1, metadata={op_name="XlaAllReduce"}
}
"""


def costs_of(text, buffers=()):
    from jaxlib import _hlo

    module = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    proto = hlo_pb2.HloProto(hlo_module=hlo_pb2.HloModuleProto.FromString(module))
    for buffer in buffers:
        proto.buffer_assignment.buffer_allocations.add(**buffer)
    return ProgramCosts(proto.SerializeToString())


@pytest.fixture(scope="module")
def costs():
    return costs_of(PROGRAM)


def test_memory_is_of_buffers_off_the_chip():
    buffers = [
        {"size": 1, "is_entry_computation_parameter": True},
        {"size": 2, "is_entry_computation_parameter": True, "maybe_live_out": True},
        {"size": 4, "maybe_live_out": True},
        {"size": 8, "is_constant": True},
        {"size": 16},
        {"size": 32, "color": 1},
        {"size": 64, "is_thread_local": True},
    ]
    memory = costs_of(PROGRAM, buffers).memory()
    assert memory == {"argument_bytes": 3, "output_bytes": 4, "temporary_bytes": 24}


def test_all_reduce_counts_its_operands_without_padding(costs):
    assert costs.all_reduce_bytes() == 4 * 100


def test_traffic_counts_tiles_loops_and_only_the_memory_off_the_chip(costs):
    padded = 128 * 128 * 4  # 64 columns fill a tile of 128
    large = 256 * 128 * 4
    counter = 4 + 4
    turn = counter + padded + (large + large)  # counted, copied in, read and written
    reduced = 128 * 4
    entry = (4 + large + padded + reduced) + 2 * reduced
    assert costs.hbm_bytes() == 3 * turn + entry


def test_arithmetic_is_of_products_in_all_turns(costs):
    assert costs.flops() == 3 * 2 * 256 * 64 * 128


BATCH = """\
HloModule step

ENTRY %main.1 (p0: f32[3,5,7], p1: f32[3,7,2]) -> f32[3,5,2] {
  %p0 = f32[3,5,7]{2,1,0} parameter(0)
  %p1 = f32[3,7,2]{2,1,0} parameter(1)
  ROOT %product = f32[3,5,2]{2,1,0} OPERATION
}
"""


@pytest.mark.parametrize(
    "operation",
    [
        "dot(%p0, %p1), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, "
        "rhs_contracting_dims={1}",
        # A TPU's compiler writes a batch of products so: each output has one place of the window.
        "convolution(%p0, %p1), window={size=3 stride=2 pad=0_0 lhs_dilate=3}, "
        "dim_labels=0bf_0io->0bf",
    ],
)
def test_a_batch_of_products_is_counted_without_padding(operation):
    assert costs_of(BATCH.replace("OPERATION", operation)).flops() == 2 * 3 * 5 * 7 * 2


@pytest.mark.parametrize(
    ("change", "times"),
    [
        (("tuple(%zero, ", "tuple(%copied, "), 3),
        (("%zero = s32[]{:T(128)} constant(0)", "%zero = s32[]{:T(128)} constant(1)"), 1),
        (("direction=LT", "direction=NE"), 1),
        (("%three = s32[]{:T(128)} constant(3)", "%three = s32[]{:T(128)} add(%m, %m)"), 1),
    ],
)
def test_loops_are_counted_by_their_condition_or_once(change, times):
    copied = "  %copied = s32[]{:T(128)} copy(%zero)\n  %start = "
    changed = costs_of(PROGRAM.replace(*change).replace("  %start = ", copied, 1))
    assert changed.flops() == times * 2 * 256 * 64 * 128


KERNEL = """\
HloModule step, is_scheduled=true

ENTRY %main.1 (query.1: bf16[256,128], key.1: bf16[512,128]) -> bf16[256,128] {
  %query.1 = bf16[256,128]{1,0:T(8,128)(2,1)} parameter(0)
  %key.1 = bf16[512,128]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  ROOT %main.2 = bf16[256,128]{1,0:T(8,128)(2,1)} custom-call(%query.1, %key.1), \
custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"body":"TUzv",\
"cost_estimate":{"flops":"100","transcendentals":"1","bytes_accessed":"500000"},"needs_layout_passes":true}}
}
"""


def test_a_kernel_moves_its_blocks_but_for_operands_on_the_chip():
    costs = costs_of(KERNEL)
    assert costs.hbm_bytes() == 500_000 - 512 * 128 * 2
    assert costs.flops() == 100
