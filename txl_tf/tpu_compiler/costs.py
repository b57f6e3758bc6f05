"""Memory, arithmetic and memory traffic of a program, from the dump of the compiler.

The compiler's own analysis counts the body of a loop once, and does not separate the memory on
the chip from the high-bandwidth memory.

A program is a tree of computations. Some instructions call other computations: the body of a loop,
the branches of a condition, or a fusion, which is one kernel. `_executed` lists the computations
outside of fusions with the number of times that each runs. Each cost is a method that counts one
instruction, and `_total` adds it up over these computations.
"""

import collections
import functools
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tensorflow.compiler.xla.service.hlo_pb2 import (
    HloComputationProto as Computation,
    HloInstructionProto as Instruction,
    HloProto,
)
from tensorflow.compiler.xla.xla_data_pb2 import PrimitiveType, ShapeProto as Shape

# Number of the high-bandwidth memory in the layout of a tensor; others are memory on the chip.
_HBM_SPACE = 0
# Instructions that read only a part of their first operand.
_SLICES = ("dynamic-slice", "slice", "gather")
# Instructions that move no bytes, or whose bytes are counted at other instructions: in the body of
# a loop, in the branches of a condition, or at the start of an asynchronous copy.
_FREE = (
    "after-all",
    "all-reduce-done",
    "async-done",
    "async-update",
    "bitcast",
    "conditional",
    "constant",
    "copy-done",
    "get-tuple-element",
    "iota",
    "parameter",
    "partition-id",
    "replica-id",
    "tuple",
    "while",
)


class ProgramCosts:
    """Counts of a program from a serialized `HloProto` with its buffer assignment."""

    def __init__(self, dump: bytes) -> None:
        proto = HloProto.FromString(dump)
        self._buffers = proto.buffer_assignment.buffer_allocations
        self._computations = {each.id: each for each in proto.hlo_module.computations}
        self._by_id = {
            each.id: each for part in self._computations.values() for each in part.instructions
        }
        # Computations outside of fusions, and the number of times that each runs.
        self._times = list(
            self._executed(self._computations[proto.hlo_module.entry_computation_id], 1)
        )

    def memory(self) -> dict[str, int]:
        """Returns the bytes of high-bandwidth memory: arguments, other outputs and temporaries."""
        parts = collections.Counter({"argument": 0, "output": 0, "temporary": 0})
        for each in self._buffers:
            if each.color or each.is_thread_local:  # A color is a memory on the chip.
                continue
            is_argument = each.is_entry_computation_parameter
            # Outputs that reuse an argument's memory need no further memory.
            kind = "argument" if is_argument else "output" if each.maybe_live_out else "temporary"
            parts[kind] += each.size
        return {f"{kind}_bytes": size for kind, size in parts.items()}

    def flops(self) -> int:
        """Counts the floating-point operations of matrix multiplications and kernels."""
        return self._total(self._flops)

    def hbm_bytes(self) -> int:
        """Counts bytes read from and written to high-bandwidth memory, with padding."""
        return self._total(self._traffic)

    def all_reduce_bytes(self) -> int:
        """Counts the bytes that each replica contributes to all-reduces, without padding."""
        return self._total(self._reduced_bytes)

    def _reduced_bytes(self, instruction: Instruction) -> int:
        # The newest chips offload all-reduces, which these instructions then contain.
        if instruction.opcode in ("async-start", "custom-call"):
            return sum(
                self._reduced_bytes(each)
                for number in instruction.called_computation_ids
                for each in self._computations[number].instructions
            )
        is_sum = instruction.opcode in ("all-reduce", "all-reduce-start")
        return sum(map(_num_bytes, self._inputs(instruction))) if is_sum else 0

    def _executed(self, computation: Computation, times: int) -> Iterator[tuple[Any, int]]:
        # Every branch of a condition is counted, and a loop of unknown length once.
        yield computation, times
        for each in computation.instructions:
            callees = [self._computations[number] for number in each.called_computation_ids]
            if each.opcode == "while":
                body, _ = callees
                yield from self._executed(body, times * (self._trip_count(each) or 1))
            elif each.opcode in ("call", "conditional"):
                for callee in callees:
                    yield from self._executed(callee, times)

    def _total(self, cost: Callable[[Instruction], int]) -> int:
        """Adds up a cost of all instructions, as often as each runs."""
        return sum(times * sum(map(cost, part.instructions)) for part, times in self._times)

    def _trip_count(self, loop: Instruction) -> int | None:
        """Returns the number of turns of a loop; `None` if it depends on data.

        Loops of TensorFlow count from 0 in steps of 1, up to a limit in their condition.
        """
        _, condition = (self._computations[number] for number in loop.called_computation_ids)
        root = self._by_id[condition.root_id]
        if root.opcode != "compare" or root.comparison_direction != "LT":
            return None
        counter, limit = self._operands(root)
        (state,) = self._operands(loop)
        if (counter.opcode, limit.opcode, state.opcode) != (
            "get-tuple-element",
            "constant",
            "tuple",
        ):
            return None
        start = self._operands(state)[counter.tuple_index]
        while start.opcode in ("copy", "bitcast", "reshape", "copy-start", "copy-done"):
            start = self._operands(start)[0]
        begins_at_0 = start.opcode == "constant" and _number(start) == 0
        return _number(limit) if begins_at_0 else None

    def _operands(self, instruction: Instruction) -> list[Instruction]:
        return [self._by_id[number] for number in instruction.operand_ids]

    def _inputs(self, instruction: Instruction) -> list[Shape]:
        return [
            tensor for operand in self._operands(instruction) for tensor in _tensors(operand.shape)
        ]

    def _called(self, instruction: Instruction) -> Computation:
        return self._computations[instruction.called_computation_ids[0]]

    def _traffic(self, instruction: Instruction) -> int:
        if instruction.opcode in _FREE or "Bitcast" in instruction.custom_call_target:
            return 0
        inputs, outputs = self._inputs(instruction), _tensors(instruction.shape)
        if instruction.opcode in ("copy-start", "async-start"):
            if not inputs:
                return 0
            # A copy lists its result first, and another operation its input.
            target = outputs[0 if instruction.opcode == "copy-start" else 1]
            ends = inputs[0].layout.memory_space, target.layout.memory_space
            return ends.count(_HBM_SPACE) * _num_padded_bytes(target)
        output_bytes = sum(map(_hbm_bytes, outputs))
        if instruction.opcode in _SLICES:
            return output_bytes + min(output_bytes, _hbm_bytes(inputs[0]))
        if instruction.opcode == "dynamic-update-slice":
            return 2 * _hbm_bytes(inputs[1])
        if instruction.opcode == "fusion":
            return self._fusion_traffic(instruction)
        if kernel_bytes := _kernel_cost(instruction, "bytes_accessed"):
            # The author counted each block as often as it is moved, and all tensors as if they were
            # in high-bandwidth memory. Tensors that the compiler put on the chip cause no traffic.
            on_chip = [
                each for each in (*outputs, *inputs) if each.layout.memory_space != _HBM_SPACE
            ]
            return max(kernel_bytes - sum(map(_num_padded_bytes, on_chip)), 0)
        return output_bytes + sum(map(_hbm_bytes, inputs))

    def _fusion_traffic(self, fusion: Instruction) -> int:
        """Counts the bytes that a fusion moves; of sliced or updated operands only the slice."""
        computation = self._called(fusion)
        users = collections.defaultdict(list)
        parameters, updates = {}, {}
        for each in computation.instructions:
            for operand in each.operand_ids:
                users[operand].append(each)
            if each.opcode == "parameter":
                parameters[each.parameter_number] = each
            elif each.opcode == "dynamic-update-slice":
                updates[each.operand_ids[0]] = each
        total = 0
        for index, operand in enumerate(self._operands(fusion)):
            full = sum(map(_hbm_bytes, _tensors(operand.shape)))
            uses = users[parameters[index].id]
            if full and uses and all(each.opcode in _SLICES for each in uses):
                full = min(full, sum(_num_padded_bytes(each.shape) for each in uses))
            elif parameters[index].id in updates:
                full = 0
            total += full
        root = self._by_id[computation.root_id]
        if root.opcode == "dynamic-update-slice" and _hbm_bytes(fusion.shape):
            return total + _num_padded_bytes(self._operands(root)[1].shape)
        return total + sum(map(_hbm_bytes, _tensors(fusion.shape)))

    def _flops(self, instruction: Instruction) -> int:
        if instruction.opcode == "fusion":
            return sum(map(self._flops, self._called(instruction).instructions))
        if instruction.opcode == "dot":
            first = self._operands(instruction)[0].shape.dimensions
            axes = instruction.dot_dimension_numbers.lhs_contracting_dimensions
            return 2 * _num_elements(instruction.shape) * math.prod(first[axis] for axis in axes)
        if instruction.opcode == "convolution":
            image, kernel = (each.shape.dimensions for each in self._operands(instruction))
            return 2 * _convolution_products(instruction, image, kernel)
        return _kernel_cost(instruction, "flops")


def _convolution_products(
    convolution: Instruction, image: Sequence[int], kernel: Sequence[int]
) -> int:
    """Counts the multiplications of a convolution without multiplications by padding."""
    numbers = convolution.convolution_dimension_numbers
    output = convolution.shape.dimensions
    count = output[numbers.output_batch_dimension] * output[numbers.output_feature_dimension]
    count *= kernel[numbers.kernel_input_feature_dimension]
    for window, axis, output_axis in zip(
        convolution.window.dimensions,
        numbers.input_spatial_dimensions,
        numbers.output_spatial_dimensions,
        strict=True,
    ):
        positions = (
            place * window.stride + offset * window.window_dilation - window.padding_low
            for place in range(output[output_axis])
            for offset in range(window.size)
        )
        end, step = image[axis] * window.base_dilation, window.base_dilation
        count *= sum(0 <= position < end and position % step == 0 for position in positions)
    return count // convolution.batch_group_count


def _kernel_cost(instruction: Instruction, name: str) -> int:
    """Returns a cost that the author of a kernel declared; 0 for other instructions."""
    if instruction.opcode != "custom-call" or b"cost_estimate" not in instruction.backend_config:
        return 0
    costs = json.loads(instruction.backend_config)["custom_call_config"]["cost_estimate"]
    return int(costs.get(name, 0))


def _number(constant: Instruction) -> int:
    """Returns the value of an integer constant."""
    literal = constant.literal
    return next(iter((*literal.s32s, *literal.s64s, *literal.u32s, *literal.u64s)))


def _tensors(shape: Shape) -> list[Shape]:
    """Returns the tensors of a shape, which may be nested tuples."""
    if shape.element_type != PrimitiveType.TUPLE:
        return [shape]
    return [tensor for part in shape.tuple_shapes for tensor in _tensors(part)]


def _num_elements(shape: Shape) -> int:
    return math.prod(shape.dimensions)


def _num_bytes(shape: Shape) -> int:
    return -(-_num_elements(shape) * _bits(shape.element_type) // 8)


def _num_padded_bytes(shape: Shape) -> int:
    """Counts the bytes of a tensor with its padding: the last dimensions in memory fill tiles."""
    lengths = [shape.dimensions[axis] for axis in shape.layout.minor_to_major]
    tile = shape.layout.tiles[0].dimensions if shape.layout.tiles else ()
    for place, length in enumerate(reversed(tile)):
        if place < len(lengths):
            lengths[place] = -(-lengths[place] // length) * length
    return -(-math.prod(lengths) * _bits(shape.element_type) // 8)


def _hbm_bytes(shape: Shape) -> int:
    """Counts the padded bytes of a tensor in high-bandwidth memory; 0 for all others."""
    if shape.element_type == PrimitiveType.TUPLE or shape.layout.memory_space != _HBM_SPACE:
        return 0
    return _num_padded_bytes(shape)


@functools.cache
def _bits(element_type: int) -> int:
    name = PrimitiveType.Name(element_type)
    digits = re.search(r"\d+", name)
    return 8 if name == "PRED" else int(digits[0]) if digits else 0
