"""Program of one replica in XLA's HLO, before it is compiled."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.xla.service import hlo_pb2


@dataclasses.dataclass(frozen=True)
class LoweredProgram:
    """HLO program of one replica, before compilation.

    `hlo` is a serialized `HloModuleProto`. `attention` says how the program attends, if this is
    known. `variable_bytes` is the size of the variables of one replica, for an evaluation only.
    """

    hlo: bytes
    num_replicas: int
    variable_bytes: int = 0
    attention: str = ""

    def to_stablehlo(self) -> bytes:
        """Converts the program to the portable format of StableHLO, which later versions read."""
        from jax.extend import mlir
        from jaxlib.mlir.dialects import stablehlo

        return stablehlo.serialize_portable_artifact_str(
            mlir.hlo_to_stablehlo(self.hlo), stablehlo.get_current_version()
        )


def lower(
    function: Callable[..., object], specs: Sequence[tf.TensorSpec], num_replicas: int = 1
) -> LoweredProgram:
    """Lowers a function of tensors with known shapes to a program.

    Variables become inputs of the program. Variables that the function assigns are also outputs,
    which reuse the memory of the inputs as in training.
    """
    program: Any = tf.function(function, jit_compile=True, autograph=False)
    # TensorFlow lowers variables only for a platform of this machine, and every machine has a CPU.
    hlo = program.experimental_get_compiler_ir(*specs)(stage="hlo_serialized", platform_name="CPU")
    return LoweredProgram(_without_copies(hlo).SerializeToString(), num_replicas)


def _without_copies(hlo: bytes) -> hlo_pb2.HloModuleProto:
    """Removes the copies that TensorFlow puts before outputs.

    The compiler inserts the copies that it needs, and cannot import programs with copies.
    """
    module = hlo_pb2.HloModuleProto.FromString(hlo)
    for computation in module.computations:
        instructions = computation.instructions
        source = {each.id: each.operand_ids[0] for each in instructions if each.opcode == "copy"}

        def original(number: int, source: dict[int, int] = source) -> int:
            while number in source:
                number = source[number]
            return number

        kept_instructions = [each for each in instructions if each.id not in source]
        for instruction in kept_instructions:
            instruction.operand_ids[:] = [original(each) for each in instruction.operand_ids]
        computation.root_id = original(computation.root_id)
        kept_instructions = [
            hlo_pb2.HloInstructionProto.FromString(each.SerializeToString())
            for each in kept_instructions
        ]
        del instructions[:]
        instructions.extend(kept_instructions)
    return module
