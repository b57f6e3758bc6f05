"""A program for the TPU compiler, as TensorFlow makes it."""

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf
from tensorflow.compiler.xla.service import hlo_pb2

from txl_tf.tpu_compiler.tpu_random_numbers import seeds_as_on_tpu, use_generator_of_tpu


@dataclasses.dataclass(frozen=True)
class LoweredProgram:
    """What one replica runs, not yet compiled.

    Attributes:
        hlo: bytes. A serialized `HloModuleProto`.
        num_replicas: int. Replicas that run it together.
    """

    hlo: bytes
    num_replicas: int


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
    function = tf.function(function, jit_compile=True, autograph=False)
    # For a platform that is not there, even TensorFlow's TPU wheel lowers no variables.
    with seeds_as_on_tpu():
        hlo = function.experimental_get_compiler_ir(*specs)(
            stage="hlo_serialized", platform_name="CPU"
        )
    module = _without_copies(hlo)
    use_generator_of_tpu(module)
    return LoweredProgram(module.SerializeToString(), num_replicas)


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
