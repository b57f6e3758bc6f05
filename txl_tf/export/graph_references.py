"""How nodes of a graph name one another."""

from collections.abc import Callable, Iterable


def node_of(reference: str) -> str:
    """The node that `name:output:0`, `name:0`, `name` or `^name` refers to."""
    return reference.removeprefix("^").split(":")[0]


def renamed(reference: str, names: dict[str, str]) -> str:
    """The same reference to a node of another name.

    Args:
        reference: str. As in `node_of`.
        names: dict of a node's name to its new one; others stay.

    Returns:
        The reference.
    """
    name = node_of(reference)
    return reference.replace(name, names.get(name, name), 1)


def reached(starts: Iterable[str], following: Callable[[str], Iterable[str]]) -> set[str]:
    """What is found from some names on.

    Args:
        starts: names to begin with.
        following: function of a name that returns the names it refers to.

    Returns:
        Set of all names.
    """
    waiting, found = list(starts), set()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += following(name)
    return found
