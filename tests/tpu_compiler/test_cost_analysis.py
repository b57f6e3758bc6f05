"""Costs of a small program, counted by hand."""

import pytest

from txl_tf.tpu_compiler.cost_analysis import CompiledText
from txl_tf.tpu_compiler.hlo import HloInstruction, read_tensors

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
  %begun = (f32[128,64]{1,0:T(8,128)}, f32[128,64]{1,0:T(8,128)S(1)}, u32[]{:S(2)}) copy-start(%b)
  %fast = f32[128,64]{1,0:T(8,128)S(1)} copy-done(%begun)
  %fusion.1 = f32[256,64]{1,0:T(8,128)} fusion(%a, %fast), kind=kOutput, calls=%multiply.1, \
metadata={op_name="model_1/block_3_1/MatMul"}, backend_config={"estimated_cycles":"700"}
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
while(%start), condition=%condition.1, body=%body.1, \
backend_config={"known_trip_count":{"n":"3"}}
  %gradient = f32[100]{0:T(128)} custom-call(%while.1), custom_call_target="Reduced"
  ROOT %all-reduce.1 = f32[100]{0:T(128)} all-reduce(%gradient), channel_id=1, \
replica_groups={{0,1,2,3}}, to_apply=%add.1, metadata={op_name="XlaAllReduce"}
}
"""


@pytest.fixture(scope="module")
def text():
    return CompiledText(PROGRAM)


def test_all_reduce_counts_what_it_sums_without_padding(text):
    assert text.all_reduce_bytes() == 4 * 100


def test_traffic_counts_tiles_loops_and_only_the_memory_off_the_chip(text):
    padded = 128 * 128 * 4  # 64 columns fill a tile of 128
    large = 256 * 128 * 4
    counter = 4 + 4
    turn = counter + padded + (large + large)  # counted, copied in, read and written
    reduced = 128 * 4
    entry = (4 + large + padded + reduced) + 2 * reduced
    assert text.hbm_bytes(counts_loops=False) == turn + entry
    assert text.hbm_bytes() == 3 * turn + entry


def test_matrix_multiplications_of_further_turns_are_added(text):
    assert text.repeated_share() == 2.0  # all of them are in the loop of three turns


def test_work_is_told_apart_by_what_a_fusion_holds(text):
    categories = text.categories()
    assert categories["matrix multiplication"] == {
        "count": 3,
        "hbm_bytes": 3 * 2 * 256 * 128 * 4,
        "estimated_cycles": 2100,
    }
    assert categories["copy"]["count"] == 3
    assert categories["scalar"]["count"] == 3


def test_operations_of_all_blocks_count_together(text):
    assert text.operations()["model/block/MatMul"]["count"] == 3


@pytest.mark.parametrize(
    ("change", "times"),
    [
        (("constant(3)", "constant(3)"), 3),
        (("%zero = s32[]{:T(128)} constant(0)", "%zero = s32[]{:T(128)} constant(1)"), None),
        (("direction=LT", "direction=NE"), None),
        (("%three = s32[]{:T(128)} constant(3)", "%three = s32[]{:T(128)} add(%m, %m)"), None),
        (("tuple(%zero, ", "tuple(%copied, "), 3),
    ],
)
def test_loops_without_a_note_are_counted_by_their_condition(change, times):
    note = ', backend_config={"known_trip_count":{"n":"3"}}'
    program = PROGRAM.replace(note, "").replace(*change)
    program = program.replace(
        "  %start = ", "  %copied = s32[]{:T(128)} copy(%zero)\n  %start = ", 1
    )
    assert "known_trip_count" not in program
    assert [loop["times"] for loop in CompiledText(program).loops()] == [times]


def test_loops_are_listed(text):
    assert [loop["times"] for loop in text.loops()] == [3]


def test_largest_tensors_come_first(text):
    sizes = [each["num_bytes"] for each in text.largest_tensors()]
    assert sizes == sorted(sizes, reverse=True)
    assert text.largest_tensors()[0]["tensor"] == "f32[256,64]"


def test_what_is_no_program_is_refused():
    with pytest.raises(ValueError, match="Received"):
        CompiledText("nothing of the kind")


@pytest.mark.parametrize(
    ("shape", "num_bytes", "num_padded_bytes"),
    [
        ("f32[8,128]{1,0:T(8,128)}", 4096, 4096),
        ("f32[9,2]{1,0:T(8,128)}", 72, 16 * 128 * 4),
        ("bf16[2,9]{0,1:T(8,128)(2,1)}", 36, 16 * 128 * 2),
        ("pred[5]{0}", 5, 5),
        ("f32[]{:T(128)}", 4, 4),
    ],
)
def test_tiles_pad_the_fastest_dimensions(shape, num_bytes, num_padded_bytes):
    (tensor,) = read_tensors(shape)
    assert (tensor.num_bytes, tensor.num_padded_bytes) == (num_bytes, num_padded_bytes)


def test_a_line_that_is_no_instruction_is_passed_over():
    assert HloInstruction.read("}") is None
    assert HloInstruction.read("  // %a = b") is None


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


def test_a_kernel_moves_what_its_blocks_move_but_for_what_is_on_the_chip():
    text = CompiledText(KERNEL)
    assert text.kernel_bytes() == 500_000
    assert text.hbm_bytes() == 500_000 - 512 * 128 * 2
    assert text.categories()["custom call"]["hbm_bytes"] == text.hbm_bytes()
