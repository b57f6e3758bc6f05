"""How far a memory reaches back."""

from typing import Any


def memory_length_of(memory: Any) -> int | None:
    """The length of a memory that has one.

    Args:
        memory: `Memory`, `ProjectedMemory`, `RecurrentMemory` or `None`.

    Returns:
        Int; `None` where there is no length.
    """
    if hasattr(memory, "keys"):
        return memory.keys[0].shape[3]
    return memory.states[0].shape[1] if hasattr(memory, "valid_length") else None
