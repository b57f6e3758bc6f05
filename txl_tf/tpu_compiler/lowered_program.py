"""A program for the TPU compiler, as TensorFlow makes it."""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.compiler.xla.service import hlo_pb2

# The names of all other types say how many bits they have.
_BITS = {"pred": 8}


@dataclasses.dataclass(frozen=True)
class LoweredProgram:
    """What one replica runs, not yet compiled.

    Attributes:
        hlo: bytes. A serialized `HloModuleProto`.
        num_replicas: int. Replicas that run it together.
        variable_bytes: int. Bytes of the variables of one replica, without
            padding.
    """

    hlo: bytes
    num_replicas: int
    variable_bytes: int = 0


def lower(
    function: Callable[..., object], specs: Sequence[tf.TensorSpec], num_replicas: int = 1
) -> LoweredProgram:
    """Turns a function into a program.

    Variables become inputs of the program, and those that the function
    assigns also outputs, which take the memory of the inputs as they do in
    training.

    Args:
        function: function of tensors.
        specs: a `tf.TensorSpec` with a known shape for every tensor.
        num_replicas: int.

    Returns:
        A `LoweredProgram`.
    """
    compiled: Any = tf.function(function, jit_compile=True, autograph=False)
    # For a platform that is not there, even TensorFlow's TPU wheel lowers no variables.
    hlo = compiled.experimental_get_compiler_ir(*specs)(stage="hlo_serialized", platform_name="CPU")
    module = _without_copies(hlo)
    parameters = module.host_program_shape.parameters[len(specs) :]
    return LoweredProgram(
        module.SerializeToString(), num_replicas, sum(map(_num_bytes, parameters))
    )


def _num_bytes(shape: xla_data_pb2.ShapeProto) -> int:
    name = xla_data_pb2.PrimitiveType.Name(shape.element_type).lower()
    bits = _BITS.get(name) or int(re.sub(r"\D*(\d+).*", r"\1", name))
    return math.prod(shape.dimensions) * bits // 8


def _without_copies(hlo: bytes) -> hlo_pb2.HloModuleProto:
    """Takes out the copies that TensorFlow puts before outputs.

    They change nothing, the compiler adds those that it needs, and the way
    into it has no such operation.
    """
    module = hlo_pb2.HloModuleProto.FromString(hlo)
    for computation in module.computations:
        source = {
            instruction.id: instruction.operand_ids[0]
            for instruction in computation.instructions
            if instruction.opcode == "copy"
        }

        def original(number: int, source: dict[int, int] = source) -> int:
            while number in source:
                number = source[number]
            return number

        kept = [each for each in computation.instructions if each.id not in source]
        for instruction in kept:
            instruction.operand_ids[:] = [original(each) for each in instruction.operand_ids]
        computation.root_id = original(computation.root_id)
        kept = [hlo_pb2.HloInstructionProto.FromString(each.SerializeToString()) for each in kept]
        del computation.instructions[:]
        computation.instructions.extend(kept)
    return module
