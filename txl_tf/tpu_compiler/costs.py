"""Memory and all-reduces of a program, from the dump of the compiler.

The compiler's own analysis does not separate the memory on the chip from the high-bandwidth memory.
"""

import collections
import math
import re

from tensorflow.compiler.xla.service.hlo_pb2 import HloProto
from tensorflow.compiler.xla.xla_data_pb2 import PrimitiveType
from tensorflow.compiler.xla.xla_data_pb2 import ShapeProto as Shape

_BITS = re.compile(r"\d+")


def memory_bytes(program: HloProto) -> dict[str, int]:
    """Returns the bytes of a device for arguments, further outputs and temporaries."""
    parts = collections.Counter({"argument": 0, "output": 0, "temporary": 0})
    for buffer in program.buffer_assignment.buffer_allocations:
        if buffer.color or buffer.is_thread_local:  # on the chip
            continue
        is_argument = buffer.is_entry_computation_parameter
        # Outputs that reuse an argument's memory need no further memory.
        kind = "argument" if is_argument else "output" if buffer.maybe_live_out else "temporary"
        parts[kind] += buffer.size
    return {f"{kind}_bytes": size for kind, size in parts.items()}


def all_reduce_bytes(program: HloProto) -> int:
    """Counts the bytes that each replica contributes to all-reduces outside of loops."""
    instructions = [
        instruction
        for computation in program.hlo_module.computations
        for instruction in computation.instructions
    ]
    shapes = {instruction.id: instruction.shape for instruction in instructions}
    return sum(
        _num_bytes(shapes[operand])
        for instruction in instructions
        if instruction.opcode in ("all-reduce", "all-reduce-start")
        for operand in instruction.operand_ids
    )


def _num_bytes(shape: Shape) -> int:
    """Counts the bytes of a tensor without padding."""
    digits = _BITS.search(PrimitiveType.Name(shape.element_type))
    bits = int(digits[0]) if digits else 8
    return -(-math.prod(shape.dimensions) * bits // 8)
