"""Parser of compiled HLO text: instructions, tensor shapes, loop trip counts."""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

_BITS = re.compile(r"\d+")
_TENSOR = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,]*)\](?:\{([^}]*)\})?")
_TILE = re.compile(r"T\(([\d,]+)\)")
_SPACE = re.compile(r"S\((\d+)\)")


class HloTensor(NamedTuple):
    """A tensor of a compiled program and its placement.

    `space` 0 is high-bandwidth memory, any other is on the chip. The last dimensions are padded
    to `tile`; `order` lists the dimensions from the fastest.
    """

    element_type: str
    dimensions: tuple[int, ...]
    space: int = 0
    tile: tuple[int, ...] = ()
    order: tuple[int, ...] = ()

    @property
    def num_elements(self) -> int:
        """Elements without padding."""
        return math.prod(self.dimensions)

    @property
    def num_bytes(self) -> int:
        """Bytes without padding."""
        return -(-self.num_elements * _bits(self.element_type) // 8)

    @property
    def num_padded_bytes(self) -> int:
        """Bytes with padding to whole tiles."""
        lengths = [self.dimensions[axis] for axis in self.order]
        for place, length in enumerate(reversed(self.tile)):
            if place < len(lengths):
                lengths[place] = -(-lengths[place] // length) * length
        return -(-math.prod(lengths) * _bits(self.element_type) // 8)


@functools.cache
def _bits(element_type: str) -> int:
    if element_type == "pred":
        return 8
    found = _BITS.search(element_type)
    return int(found[0]) if found else 0


def read_tensors(text: str) -> tuple[HloTensor, ...]:
    """Reads shapes, such as `(f32[8,128]{1,0:T(8,128)}, s32[])`."""
    return tuple(_read_tensor(*found) for found in _TENSOR.findall(text))


@functools.cache
def _read_tensor(element_type: str, dimensions: str, layout: str) -> HloTensor:
    lengths = tuple(int(length) for length in dimensions.split(",") if length)
    order_text, _, rest = layout.partition(":")
    order = tuple(int(axis) for axis in order_text.split(",") if axis.isdigit())
    tile, space = _TILE.search(rest), _SPACE.search(rest)
    return HloTensor(
        element_type,
        lengths,
        space=int(space[1]) if space else 0,
        tile=tuple(int(length) for length in tile[1].split(",")) if tile else (),
        order=order if len(order) == len(lengths) else tuple(reversed(range(len(lengths)))),
    )


_LINE = re.compile(r"\s+(?:ROOT )?%(?P<name>\S+) = (?P<rest>.*)")
_OPERATION = re.compile(r" ([a-z][\w\-]*)\(")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_KERNEL_BYTES = re.compile(r'"cost_estimate":\{[^}]*"bytes_accessed":"(\d+)"')
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_COMMENT = re.compile(r"/\*.*?\*/")


@dataclasses.dataclass(frozen=True, slots=True)
class HloInstruction:
    """An operation of a compiled program.

    `opcode` is such as `fusion`, `operands` are the names of the instructions it reads, and
    `attributes` the text after them.
    """

    name: str
    opcode: str
    outputs: tuple[HloTensor, ...]
    operands: tuple[str, ...]
    attributes: str
    is_root: bool

    @classmethod
    def read(cls, line: str) -> Self | None:
        """Reads a line; `None` if it is not an instruction."""
        matched = _LINE.match(line)
        if matched is None:
            return None
        rest = _COMMENT.sub("", matched["rest"])
        shape_end = _end_of_group(rest, 0) if rest.startswith("(") else rest.index(" ")
        operation = _OPERATION.match(rest, shape_end)
        if operation is None:
            return None
        operands_end = _end_of_group(rest, operation.end() - 1)
        inside = rest[operation.end() : operands_end - 1]
        operands = (inside,) if operation[1] in ("parameter", "constant") else ()
        return cls(
            name=matched["name"],
            opcode=operation[1],
            outputs=read_tensors(rest[:shape_end]),
            operands=operands or tuple(_OPERAND.findall(inside)),
            attributes=rest[operands_end:],
            is_root=line.lstrip().startswith("ROOT "),
        )

    @property
    def estimated_cycles(self) -> int:
        """The compiler's own estimate, 0 if missing."""
        found = _CYCLES.search(self.attributes)
        return int(found[1]) if found else 0

    @property
    def kernel_bytes(self) -> int | None:
        """Bytes that a kernel moves, as declared by its author; `None` for other instructions."""
        found = _KERNEL_BYTES.search(self.attributes)
        return int(found[1]) if found else None

    @property
    def op_name(self) -> str:
        """Name of the TensorFlow operation it comes from, or an empty string."""
        found = _OP_NAME.search(self.attributes)
        return found[1] if found else ""

    def called(self, *attributes: str) -> Sequence[str]:
        """Returns the computations that attributes such as `calls` name, in their order."""
        pattern = rf"\b(?:{'|'.join(attributes)})=(\{{[^}}]*\}}|%[\w.\-]+)"
        groups = re.findall(pattern, self.attributes)
        return [name for group in groups for name in _OPERAND.findall(group)]


def _end_of_group(text: str, start: int) -> int:
    """Returns the index after the bracket that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        if text[place] in "({":
            depth += 1
        elif text[place] in ")}":
            depth -= 1
            if depth == 0:
                return place + 1
    return len(text)


_KNOWN = re.compile(r'"known_trip_count":\{"n":"?(\d+)')
_INDEX = re.compile(r"\bindex=(\d+)")
_COPIES = ("copy", "bitcast", "reshape", "copy-start", "copy-done")


def trip_count(
    loop: HloInstruction,
    caller: Sequence[HloInstruction],
    computations: Mapping[str, Sequence[HloInstruction]],
) -> int | None:
    """Finds the number of turns of a loop, which `caller` contains; `None` if data decide.

    The compiler notes it, or the condition shows it: TensorFlow's loops count from 0, by 1, up to
    a limit.
    """
    known = _KNOWN.search(loop.attributes)
    if known is not None:
        return int(known[1])
    (name,) = loop.called("condition")
    condition = {each.name: each for each in computations[name]}
    root = next(each for each in condition.values() if each.is_root)
    if root.opcode != "compare" or "direction=LT" not in root.attributes:
        return None
    counter, limit = (condition.get(operand) for operand in root.operands)
    if counter is None or limit is None or limit.opcode != "constant":
        return None
    index = _INDEX.search(counter.attributes)
    if counter.opcode != "get-tuple-element" or index is None:
        return None
    begins_at_0 = _start(loop, int(index[1]), {each.name: each for each in caller}) == "0"
    return int(limit.operands[0]) if begins_at_0 else None


def _start(loop: HloInstruction, index: int, caller: Mapping[str, HloInstruction]) -> str | None:
    """Returns the constant that initialises an element of the loop's state."""
    state = caller.get(loop.operands[0])
    if state is None or state.opcode != "tuple":
        return None
    found = caller.get(state.operands[index])
    while found is not None and found.opcode in _COPIES:
        found = caller.get(found.operands[0])
    return found.operands[0] if found is not None and found.opcode == "constant" else None
