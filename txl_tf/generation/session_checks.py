"""What the parts of a saved session may be.

Shape letters used in this module: R rows, M memory length, V vocabulary.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from txl_tf.generation.session_archive import damaged

LAST_POSITION = 2**31 - 1
_RANGES = {
    "seed": (-(2**31), 2**31 - 1),
    "position": (0, LAST_POSITION),
    "filled": (0, LAST_POSITION),
}


def named_parts(name: str, part: Any) -> Iterator[tuple[str, Any]]:
    """Names the arrays of a memory, in the order in which TensorFlow flattens it.

    Args:
        name: str. Name of the whole.
        part: array, or a tuple of tuples and arrays.

    Yields:
        Pairs such as `("memory.keys.0", array)`.
    """
    if isinstance(part, tuple):
        fields = getattr(part, "_fields", range(len(part)))
        for field, each in zip(fields, part, strict=True):
            yield from named_parts(f"{name}.{field}", each)
    else:
        yield name, part


def check_values(values: dict[str, Any], capacity: int, where: str) -> None:
    """Checks the numbers of a session.

    Args:
        values: dict from the header of the file.
        capacity: int. How many tokens fit beside memory.
        where: str. The file.

    Raises:
        DataDamagedError: If one of them is missing, or cannot be.
    """
    fields = {*_RANGES, "has_pending"}
    if set(values) != fields:
        what = f"the fields must be {', '.join(sorted(fields))}"
        raise damaged(what, f"{where}, header, values")
    for field, (least, most) in _RANGES.items():
        value = values[field]
        if type(value) is not int or not least <= value <= most:
            what = f"it must be an integer from {least} to {most}, and is {ascii(value)[:40]}"
            raise damaged(what, f"{where}, header, values.{field}")
    if type(values["has_pending"]) is not bool:
        raise damaged("it must be true or false", f"{where}, header, values.has_pending")
    if values["filled"] > min(capacity, values["position"]):
        what = f"more tokens than were written, or than {capacity}"
        raise damaged(what, f"{where}, header, values.filled")
    if values["position"] and not values["has_pending"]:
        what = "there is no newest token, though some were written"
        raise damaged(what, f"{where}, header, values.has_pending")


def check_arrays(
    arrays: dict[str, np.ndarray],
    *,
    filled: int,
    memory_length: int,
    vocabulary_size: int,
    where: str,
) -> None:
    """Checks what is in the arrays of a session.

    Args:
        arrays: dict of name, see `named_parts`, to array.
        filled: int. From the values of the session.
        memory_length: int. `M`.
        vocabulary_size: int. `V`.
        where: str. The file.

    Raises:
        DataDamagedError: If a number is not finite, a length is longer than it
            can be, or a token is none of the vocabulary.
    """
    for field, array in arrays.items():
        last = field.rpartition(".")[2]
        if array.dtype.kind not in "biu" and not np.isfinite(array).all():
            raise damaged("it has numbers that are not finite", f"{where}, {field}")
        least, most = {
            "valid_length": (0, memory_length),
            "length": (filled, filled),
            "lengths": (0, filled),
            "pending": (0, vocabulary_size - 1),
        }.get(last, (None, None))
        if least is not None and array.size and not least <= array.min() <= array.max() <= most:
            what = f"it must be from {least} to {most}, and is from {array.min()} to {array.max()}"
            raise damaged(what, f"{where}, {field}")
