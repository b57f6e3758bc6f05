"""Operations and memory traffic of a compiled program, counted from its text.

The compiler's own cost analysis counts the body of a loop once, and does not separate
on-chip memory from high-bandwidth memory.
"""

import collections
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

from txl_tf.tpu_compiler.hlo import HloInstruction, HloTensor, trip_count

_HEADER = re.compile(r"(?:ENTRY )?%([\w.\-]+) \(.*\{$")
_NUMBERS = re.compile(r"(_\d+)+(?=[/;]|$)")
_SLICES = ("dynamic-slice", "slice", "gather")
_FREE = (
    "after-all",
    "all-reduce-done",
    "async-done",
    "bitcast",
    "conditional",
    "constant",
    "copy-done",
    "get-tuple-element",
    "iota",
    "parameter",
    "partition-id",
    "replica-id",
    "slice-done",
    "tuple",
    "while",
)
# The first match names the fusion.
_CATEGORIES = (
    ("all-reduce", ("all-reduce", "all-reduce-start")),
    ("matrix multiplication", ("convolution", "dot")),
    ("sort", ("sort",)),
    ("scatter", ("scatter",)),
    ("gather", ("gather",)),
    ("random numbers", ("rng-bit-generator", "rng")),
    ("reduction", ("reduce", "reduce-window")),
)
_COPIES = (
    "copy",
    "copy-start",
    "slice-start",
    "transpose",
    "reshape",
    "pad",
    "slice",
    "concatenate",
)
_NUM_LISTED = 12


class CompiledText:
    """Counts of operations and bytes in the text from `HloModule.to_string`."""

    def __init__(self, text: str) -> None:
        self._computations: dict[str, list[HloInstruction]] = {}
        self._entry = ""
        self._read(text)
        self._shapes = {
            name: {each.name: each.outputs for each in instructions}
            for name, instructions in self._computations.items()
        }
        self._times = dict(self._executed(self._entry, 1))

    def to_dict(self) -> dict[str, Any]:
        """Returns all counts in JSON types."""
        return {
            "hbm_bytes": self.hbm_bytes(),
            "repeated_bytes": self.hbm_bytes() - self.hbm_bytes(counts_loops=False),
            "repeated_share": self.repeated_share(),
            "kernel_bytes": self.kernel_bytes(),
            "all_reduce_bytes": self.all_reduce_bytes(),
            "loops": self.loops(),
            "categories": self.categories(),
            "operations": self.operations(),
            "largest_tensors": self.largest_tensors(),
        }

    def all_reduce_bytes(self) -> int:
        """Bytes that each replica contributes to all-reduces, without padding."""
        return sum(
            times * sum(tensor.num_bytes for tensor in self._inputs(name, instruction))
            for name, instruction, times in self._all_executed()
            if instruction.opcode in ("all-reduce", "all-reduce-start")
        )

    def hbm_bytes(self, counts_loops: bool = True) -> int:
        """Counts bytes read from and written to high-bandwidth memory, with padding.

        Loops count by their known number of turns, or once.
        """
        return sum(
            (times if counts_loops else 1) * self._traffic(name, instruction)
            for name, instruction, times in self._all_executed()
        )

    def kernel_bytes(self) -> int:
        """Bytes that the blocks of kernels move, even if the other end is on the chip."""
        return sum(times * (each.kernel_bytes or 0) for _, each, times in self._all_executed())

    def repeated_share(self) -> float:
        """Arithmetic of loop turns after the first, relative to the arithmetic counted once.

        It counts the operations of matrix multiplications. The compiler counts a loop once, but
        windows and batches more exactly than their shapes show.
        """
        once, repeated = 0, 0
        for name, instruction, times in self._all_executed():
            flops = self._flops(name, instruction)
            once += flops
            repeated += (times - 1) * flops
        return repeated / once if once else 0.0

    def loops(self) -> list[dict[str, Any]]:
        """Returns every loop: its origin and its number of turns, `None` if it depends on data."""
        return [
            {"op_name": _general(each.op_name), "times": self._trip_count(name, each)}
            for name, each, _ in self._all_executed()
            if each.opcode == "while"
        ]

    def categories(self) -> dict[str, dict[str, int]]:
        """Returns instructions, bytes and the compiler's estimated cycles by kind of work."""
        return self._grouped(lambda each: self._category(each), limit=None)

    def operations(self) -> dict[str, dict[str, int]]:
        """Returns instructions, bytes and cycles by TensorFlow operation, most bytes first."""
        return self._grouped(lambda each: _general(each.op_name), limit=_NUM_LISTED)

    def largest_tensors(self) -> list[dict[str, Any]]:
        """Returns the largest tensors that go through the high-bandwidth memory."""
        found: collections.Counter[tuple[str, str, int]] = collections.Counter()
        for _, instruction, _ in self._all_executed():
            if instruction.opcode in _FREE:
                continue
            for tensor in instruction.outputs:
                if tensor.space == 0 and tensor.num_elements > 1:
                    key = (_described(tensor), _general(instruction.op_name))
                    found[(*key, tensor.num_padded_bytes)] += 1
        ordered = sorted(found.items(), key=lambda item: -item[0][2])
        return [
            {"tensor": tensor, "op_name": op_name, "num_bytes": num_bytes, "count": count}
            for (tensor, op_name, num_bytes), count in ordered[:_NUM_LISTED]
        ]

    def _read(self, text: str) -> None:
        current: list[HloInstruction] | None = None
        for line in text.splitlines():
            header = None if line.startswith(" ") else _HEADER.match(line)
            if header is not None:
                current = self._computations.setdefault(header[1], [])
                if line.startswith("ENTRY"):
                    self._entry = header[1]
            elif current is not None and (instruction := HloInstruction.read(line)):
                current.append(instruction)
        if not self._entry:
            raise ValueError(f"`text` must be a compiled program. Received: {text[:80]!r}")

    def _executed(self, name: str, times: int) -> Iterator[tuple[str, int]]:
        """Yields computations that run outside of a fusion, and how often."""
        yield name, times
        for each in self._computations[name]:
            inner = times
            if each.opcode == "while":
                inner = times * (self._trip_count(name, each) or 1)
                called = each.called("body")
            elif each.opcode == "call":
                called = each.called("to_apply")
            elif each.opcode == "conditional":
                called = each.called("branch_computations", "true_computation", "false_computation")
            else:
                continue
            for callee in called:
                yield from self._executed(callee, inner)

    def _trip_count(self, name: str, loop: HloInstruction) -> int | None:
        return trip_count(loop, self._computations[name], self._computations)

    def _all_executed(self) -> Iterator[tuple[str, HloInstruction, int]]:
        for name, times in self._times.items():
            for instruction in self._computations[name]:
                yield name, instruction, times

    def _inputs(self, name: str, instruction: HloInstruction) -> list[HloTensor]:
        shapes = self._shapes[name]
        return [tensor for operand in instruction.operands for tensor in shapes.get(operand, ())]

    def _traffic(self, name: str, instruction: HloInstruction) -> int:
        if instruction.opcode in _FREE or _is_relabelling(instruction):
            return 0
        inputs = self._inputs(name, instruction)
        if instruction.opcode in ("copy-start", "slice-start"):
            target = instruction.outputs[1]
            ends = (inputs[0].space, target.space)
            return ends.count(0) * target.num_padded_bytes
        written = sum(_hbm(tensor) for tensor in instruction.outputs)
        if instruction.opcode in _SLICES:
            return written + min(written, _hbm(inputs[0]))
        if instruction.opcode == "dynamic-update-slice":
            return 2 * _hbm(inputs[1])
        if instruction.opcode == "fusion":
            return self._fusion_traffic(name, instruction)
        if instruction.opcode == "custom-call" and instruction.kernel_bytes is not None:
            # Blocks may be read more than once; operands already on the chip cause no traffic.
            operands = (*instruction.outputs, *inputs)
            on_chip = sum(tensor.num_padded_bytes for tensor in operands if tensor.space != 0)
            return max(instruction.kernel_bytes - on_chip, 0)
        return written + sum(_hbm(tensor) for tensor in inputs)

    def _fusion_traffic(self, name: str, fusion: HloInstruction) -> int:
        """Counts the traffic of a fusion; for sliced or updated operands, only the slice."""
        body = self._computations[fusion.called("calls")[0]]
        shapes = self._shapes[fusion.called("calls")[0]]
        users = collections.defaultdict(list)
        for each in body:
            for operand in each.operands:
                users[operand].append(each)
        updated = {
            each.operands[0]: shapes[each.operands[1]]
            for each in body
            if each.opcode == "dynamic-update-slice"
        }
        total = 0
        parameters = {each.operands[0]: each for each in body if each.opcode == "parameter"}
        for index, operand in enumerate(fusion.operands):
            full = sum(_hbm(tensor) for tensor in self._shapes[name].get(operand, ()))
            parameter = parameters.get(str(index))
            uses = users[parameter.name] if parameter is not None else []
            if full and uses and all(each.opcode in _SLICES for each in uses):
                full = min(full, sum(each.outputs[0].num_padded_bytes for each in uses))
            elif full and parameter is not None and parameter.name in updated:
                full = 0
            total += full
        root = next(each for each in body if each.is_root)
        if root.opcode == "dynamic-update-slice" and _hbm(fusion.outputs[0]):
            return total + sum(tensor.num_padded_bytes for tensor in shapes[root.operands[1]])
        return total + sum(_hbm(tensor) for tensor in fusion.outputs)

    def _flops(self, name: str, instruction: HloInstruction) -> int:
        if instruction.opcode == "fusion":
            return sum(
                self._flops(called, each)
                for called in instruction.called("calls")
                for each in self._computations[called]
            )
        if instruction.opcode not in ("convolution", "dot"):
            return 0
        inputs = self._inputs(name, instruction)
        if len(inputs) < 2 or not instruction.outputs:
            return 0
        # Summed dimensions are in both inputs and not in the output, batch dimensions in all three,
        # and the others in one input and the output.
        product = inputs[0].num_elements * inputs[1].num_elements
        output = instruction.outputs[0].num_elements
        return 2 * round((product * output) ** 0.5) if output else 0

    @functools.cache  # noqa: B019, an object lives as long as the process
    def _opcodes(self, name: str) -> frozenset[str]:
        found = set()
        for each in self._computations[name]:
            found.add(each.opcode)
            if each.opcode == "fusion":
                for called in each.called("calls"):
                    found |= self._opcodes(called)
        return frozenset(found)

    def _category(self, instruction: HloInstruction) -> str:
        opcodes = {instruction.opcode}
        if instruction.opcode == "fusion":
            for called in instruction.called("calls"):
                opcodes |= self._opcodes(called)
        for category, names in _CATEGORIES:
            if opcodes.intersection(names):
                return category
        if instruction.opcode in _FREE or _is_relabelling(instruction):
            return "none"
        if instruction.opcode in _COPIES:
            return "copy"
        if all(tensor.num_elements <= 1 for tensor in instruction.outputs):
            return "scalar"
        return "custom call" if instruction.opcode == "custom-call" else "elementwise"

    def _grouped(
        self, key: Callable[[HloInstruction], str], limit: int | None
    ) -> dict[str, dict[str, int]]:
        groups: dict[str, dict[str, int]] = {}
        for name, instruction, times in self._all_executed():
            if instruction.opcode in _FREE or _is_relabelling(instruction):
                continue
            group = groups.setdefault(
                key(instruction), {"count": 0, "hbm_bytes": 0, "estimated_cycles": 0}
            )
            group["count"] += times
            group["hbm_bytes"] += times * self._traffic(name, instruction)
            group["estimated_cycles"] += times * instruction.estimated_cycles
        ordered = sorted(groups.items(), key=lambda item: -item[1]["hbm_bytes"])
        return dict(ordered[:limit])


def _is_relabelling(instruction: HloInstruction) -> bool:
    return instruction.opcode == "custom-call" and "Bitcast" in instruction.attributes


def _hbm(tensor: HloTensor) -> int:
    return tensor.num_padded_bytes if tensor.space == 0 else 0


def _described(tensor: HloTensor) -> str:
    return f"{tensor.element_type}[{','.join(map(str, tensor.dimensions))}]"


def _general(op_name: str) -> str:
    """Returns the name without numbers, so that all blocks count together."""
    return _NUMBERS.sub("", op_name) or "(made by the compiler)"
