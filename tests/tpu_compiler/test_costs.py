"""Memory and all-reduces of a small program, counted by hand."""

from tensorflow.compiler.xla.service.hlo_pb2 import HloProto
from tensorflow.compiler.xla.xla_data_pb2 import PrimitiveType

from txl_tf.tpu_compiler.costs import all_reduce_bytes, memory_bytes


def test_memory_is_of_buffers_off_the_chip():
    proto = HloProto()
    for buffer in (
        {"size": 1, "is_entry_computation_parameter": True},
        {"size": 2, "is_entry_computation_parameter": True, "maybe_live_out": True},
        {"size": 4, "maybe_live_out": True},
        {"size": 8, "is_constant": True},
        {"size": 16},
        {"size": 32, "color": 1},
        {"size": 64, "is_thread_local": True},
    ):
        proto.buffer_assignment.buffer_allocations.add(**buffer)
    expected = {"argument_bytes": 3, "output_bytes": 4, "temporary_bytes": 24}
    assert memory_bytes(proto) == expected


def test_an_all_reduce_counts_its_operands_without_padding():
    proto = HloProto()
    computation = proto.hlo_module.computations.add()
    shapes = ((PrimitiveType.F32, 100), (PrimitiveType.BF16, 7), (PrimitiveType.PRED, 3))
    for number, (element_type, length) in enumerate(shapes):
        computation.instructions.add(
            id=number,
            opcode="parameter",
            shape={"element_type": element_type, "dimensions": [length]},
        )
    computation.instructions.add(id=9, opcode="all-reduce", operand_ids=[0, 1, 2])
    assert all_reduce_bytes(proto) == 4 * 100 + 2 * 7 + 3
