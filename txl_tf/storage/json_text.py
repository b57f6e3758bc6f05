"""JSON from outside the program, read strictly."""

import json
import math
from typing import Any

MAX_DEPTH = 32
_LARGEST_INTEGER = 2**64 - 1
_SMALLEST_INTEGER = -(2**63)


def parse_json(
    content: bytes | str, *, max_depth: int = MAX_DEPTH, max_values: int | None = None
) -> Any:
    """Parses JSON and refuses what is not exactly one well-formed value.

    Refused beside malformed text: bytes that are not UTF-8, a key that stands
    twice in one object, NaN and infinities, numbers that neither 64-bit integers
    nor float64 can hold, lone surrogates, and deep nesting.

    Args:
        content: bytes or str. All of the text.
        max_depth: int. Deepest nesting of lists and objects that is accepted.
        max_values: optional int. Commas, brackets and braces that are accepted:
            an empty list takes 2 bytes of text and 64 of memory.

    Returns:
        The value.

    Raises:
        ValueError: If the text is refused.
    """
    text = content if isinstance(content, str) else content.decode("utf-8")
    if max_values is not None and sum(map(text.count, ",[{")) > max_values:
        raise ValueError(f"There must be at most {max_values:,} values.")
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise _too_deep(max_depth) from error
    check_values(value, max_depth=max_depth)
    return value


def check_values(value: Any, *, max_depth: int = MAX_DEPTH) -> None:
    """Refuses nesting, numbers and strings that the program cannot hold.

    It serves for every format that is parsed to plain lists, dicts, numbers and
    strings, TOML among them.

    Args:
        value: the parsed value.
        max_depth: int. Deepest nesting of lists and dicts that is accepted.

    Raises:
        ValueError: If a value is refused.
    """
    level, depth = [value], 0
    while level:
        below: list[Any] = []
        for each in level:
            kind = type(each)
            if kind is dict:
                below += each
                below += each.values()
            elif kind is list:
                below += each
            else:
                _check_scalar(each)
        depth += any(type(each) in (dict, list) for each in level)
        if depth > max_depth:
            raise _too_deep(max_depth)
        level = below


def _check_scalar(value: Any) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"A number must fit float64. Received: {value}")
    elif isinstance(value, int):
        if not _SMALLEST_INTEGER <= value <= _LARGEST_INTEGER:
            raise ValueError(
                f"An integer must fit 64 bits. Received: one of {value.bit_length()} bits"
            )
    elif isinstance(value, str):
        # Only a lone surrogate cannot be encoded.
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"A string must have no lone surrogate. Received: {value[:60]!a}"
            ) from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"A key must stand once in an object. Received: {key[:60]!r}")
            seen.add(key)
    return values


def _refuse_constant(name: str) -> float:
    raise ValueError(f"A number must be finite. Received: {name}")


def _too_deep(max_depth: int) -> ValueError:
    return ValueError(f"Lists and objects must be nested at most {max_depth} deep.")
