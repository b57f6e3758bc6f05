"""One line of a compiled program in text form."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Self

from txl_tf.tpu_compiler.hlo_tensor import HloTensor, read_tensors

_LINE = re.compile(r"\s+(?:ROOT )?%(?P<name>\S+) = (?P<rest>.*)")
_OPERATION = re.compile(r" ([a-z][\w\-]*)\(")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_COMMENT = re.compile(r"/\*.*?\*/")


@dataclasses.dataclass(frozen=True, slots=True)
class HloInstruction:
    """An operation of a compiled program.

    Attributes:
        name: str.
        opcode: str, such as `fusion`.
        outputs: tuple of `HloTensor`.
        operands: tuple of str. Names of the instructions it reads.
        attributes: str. Everything after the operands, as text.
        is_root: bool. Whether it is what its computation returns.
    """

    name: str
    opcode: str
    outputs: tuple[HloTensor, ...]
    operands: tuple[str, ...]
    attributes: str
    is_root: bool

    @classmethod
    def read(cls, line: str) -> Self | None:
        """Reads a line.

        Args:
            line: str.

        Returns:
            The instruction, or `None` if the line is none.
        """
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
        """The compiler's own estimate, 0 where it gives none."""
        found = _CYCLES.search(self.attributes)
        return int(found[1]) if found else 0

    @property
    def op_name(self) -> str:
        """The TensorFlow operation that it comes from, or an empty string."""
        found = _OP_NAME.search(self.attributes)
        return found[1] if found else ""

    def called(self, *attributes: str) -> Sequence[str]:
        """Names of computations that it calls.

        Args:
            *attributes: names of attributes, such as `calls`.

        Returns:
            List of names, in their order.
        """
        pattern = rf"\b(?:{'|'.join(attributes)})=(\{{[^}}]*\}}|%[\w.\-]+)"
        groups = re.findall(pattern, self.attributes)
        return [name for group in groups for name in _OPERAND.findall(group)]


def _end_of_group(text: str, start: int) -> int:
    """The place after the bracket that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        if text[place] in "({":
            depth += 1
        elif text[place] in ")}":
            depth -= 1
            if depth == 0:
                return place + 1
    return len(text)
