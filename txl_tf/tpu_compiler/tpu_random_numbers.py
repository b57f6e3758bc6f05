"""Random numbers as a TPU draws them, in programs lowered on a machine without one.

TensorFlow chooses the generator of `alg="auto_select"` by the platform. On a
TPU the seed is the state of the generator that the chip has. On a CPU the seed
is hashed with about 300 operations on single numbers, and the numbers are
made by Philox. Compiled for a TPU, that would be most of the program and much
of its memory traffic, none of which a TPU would do.
"""

import contextlib
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.compiler.xla.service import hlo_pb2
from tensorflow.python.ops import gen_stateless_random_ops_v2

_STATE_LENGTH = 2


@contextlib.contextmanager
def seeds_as_on_tpu() -> Iterator[None]:
    """Within it, seeds become states of generators without being hashed."""
    original = gen_stateless_random_ops_v2.stateless_random_get_key_counter

    def key_and_counter(seed: tf.Tensor, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        halves = tf.cast(tf.bitcast(tf.cast(seed, tf.int32), tf.uint32), tf.uint64)
        key = tf.bitwise.bitwise_or(
            halves[0], tf.bitwise.left_shift(halves[1], tf.constant(32, tf.uint64))
        )
        return tf.reshape(key, [1]), tf.zeros([_STATE_LENGTH], tf.uint64)

    gen_stateless_random_ops_v2.stateless_random_get_key_counter = key_and_counter
    try:
        yield
    finally:
        gen_stateless_random_ops_v2.stateless_random_get_key_counter = original


def use_generator_of_tpu(module: hlo_pb2.HloModuleProto) -> None:
    """Replaces Philox by the chip's own generator.

    Args:
        module: `HloModuleProto`, which is changed.
    """
    next_id = 1 + max(each.id for part in module.computations for each in part.instructions)
    for computation in module.computations:
        instructions: list[hlo_pb2.HloInstructionProto] = []
        for instruction in computation.instructions:
            if instruction.rng_algorithm == xla_data_pb2.RNG_PHILOX:
                instructions.append(_shortened_state(instruction, next_id))
                _use_default(instruction, next_id)
                next_id += 1
            instructions.append(instruction)
        kept = _without_unused(instructions, computation.root_id)
        kept = [hlo_pb2.HloInstructionProto.FromString(each.SerializeToString()) for each in kept]
        del computation.instructions[:]
        computation.instructions.extend(kept)


def _shortened_state(
    generator: hlo_pb2.HloInstructionProto, number: int
) -> hlo_pb2.HloInstructionProto:
    """Philox has a key and two numbers that count, the chip's generator one."""
    shortened = hlo_pb2.HloInstructionProto(
        name=f"state.{number}", opcode="slice", id=number, operand_ids=generator.operand_ids
    )
    shortened.shape.CopyFrom(generator.shape.tuple_shapes[0])
    shortened.shape.dimensions[0] = _STATE_LENGTH
    shortened.slice_dimensions.add(start=0, limit=_STATE_LENGTH, stride=1)
    return shortened


def _use_default(generator: hlo_pb2.HloInstructionProto, state: int) -> None:
    generator.rng_algorithm = xla_data_pb2.RNG_DEFAULT
    generator.operand_ids[:] = [state]
    generator.shape.tuple_shapes[0].dimensions[0] = _STATE_LENGTH


def _without_unused(
    instructions: list[hlo_pb2.HloInstructionProto], root: int
) -> list[hlo_pb2.HloInstructionProto]:
    """The state after the numbers is unused, and of the wrong length now."""
    operands = {
        each.id: [*each.operand_ids, *each.control_predecessor_ids] for each in instructions
    }
    used, waiting = set(), [root]
    while waiting:
        number = waiting.pop()
        if number not in used:
            used.add(number)
            waiting += operands[number]
    return [each for each in instructions if each.id in used or each.opcode == "parameter"]
