"""How often a loop of a compiled program runs."""

import re
from collections.abc import Mapping, Sequence

from txl_tf.tpu_compiler.hlo_instruction import HloInstruction

_KNOWN = re.compile(r'"known_trip_count":\{"n":"?(\d+)')
_INDEX = re.compile(r"\bindex=(\d+)")
_COPIES = ("copy", "bitcast", "reshape", "copy-start", "copy-done")


def trip_count(
    loop: HloInstruction,
    caller: Sequence[HloInstruction],
    computations: Mapping[str, Sequence[HloInstruction]],
) -> int | None:
    """Finds how often a loop runs.

    The compiler notes it, or the condition tells: TensorFlow's loops count
    from 0, by 1, up to a limit.

    Args:
        loop: `HloInstruction` of a `while`.
        caller: sequence of `HloInstruction`. The computation that it is in.
        computations: dict of name to instructions.

    Returns:
        An int, or `None` where data decide.
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
    """The constant that an element of the loop's state begins with."""
    state = caller.get(loop.operands[0])
    if state is None or state.opcode != "tuple":
        return None
    found = caller.get(state.operands[index])
    while found is not None and found.opcode in _COPIES:
        found = caller.get(found.operands[0])
    return found.operands[0] if found is not None and found.opcode == "constant" else None
