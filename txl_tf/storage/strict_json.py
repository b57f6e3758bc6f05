"""JSON that is read with limits, because it may come from strangers."""

import collections
import hashlib
import json
import math
from typing import Any

from txl_tf.errors import DataDamagedError, errors_as
from txl_tf.storage.files import RESTORE_REMEDY, read_file

# Lists and objects may be nested this deep.
MAX_DEPTH = 32
# Limits of a file with one description. A manifest of 100,000 shards has 20 MB.
MAX_DESCRIPTION_BYTES = 64 << 20
MAX_VALUES = 4 << 20
_LARGEST_INTEGER = 2**64 - 1
_SMALLEST_INTEGER = -(2**63)
_TOO_DEEP = "Lists and objects are nested too deep."


def parse_json(content: bytes | str, *, max_values: int | None = None) -> Any:
    """Parses JSON strictly: the text must be exactly one well-formed value.

    Raises ValueError also for bytes that are not UTF-8, a key that occurs twice in one object, NaN
    and infinities, numbers that neither 64-bit integers nor float64 can hold, lone surrogates, and
    nesting deeper than `MAX_DEPTH`. `max_values` limits the number of commas, brackets and braces,
    and thereby the memory of the values.
    """
    text = content if isinstance(content, str) else content.decode("utf-8")
    if max_values is not None and sum(map(text.count, ",[{")) > max_values:
        raise ValueError(f"There must be at most {max_values:,} values.")
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    check_values(value)
    return value


def check_values(value: Any, *, max_depth: int = MAX_DEPTH) -> None:
    """Raises ValueError for nesting, numbers and strings that the program cannot hold."""
    if isinstance(value, dict | list):
        if max_depth == 0:
            raise ValueError(_TOO_DEEP)
        for each in [*value, *value.values()] if isinstance(value, dict) else value:
            check_values(each, max_depth=max_depth - 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"A number must be at most about 1.8e308, in float64. Received: {value}")
    elif isinstance(value, int) and not _SMALLEST_INTEGER <= value <= _LARGEST_INTEGER:
        bits = value.bit_length()
        raise ValueError(f"An integer must fit into 64 bits. Received: {bits} bits")
    elif isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            what = "A string must have no lone surrogate."
            raise ValueError(f"{what} Received: {value[:60]!a}") from error


def json_file(values: Any, indent: int = 2) -> bytes:
    """Returns the content of a file that holds one JSON value, with a line end."""
    return (json.dumps(values, indent=indent) + "\n").encode()


def json_sha256(values: Any) -> str:
    """Returns the SHA-256 of JSON values; the order of keys does not matter."""
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        (key, _), *_ = collections.Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"An object must not have a key twice. Received: {key[:60]!r} twice")
    return values


def _refuse_constant(name: str) -> float:
    raise ValueError(f"A number must be finite. Received: {name}")


def read_json_object(
    path: str, *, remedy: str = RESTORE_REMEDY, max_bytes: int = MAX_DESCRIPTION_BYTES
) -> dict[str, Any]:
    """Reads a file; DataDamagedError unless its content is one JSON object."""
    return parse_json_object(read_file(path, max_bytes=max_bytes), where=path, remedy=remedy)


def parse_json_object(
    content: bytes | str, *, where: str, remedy: str = RESTORE_REMEDY
) -> dict[str, Any]:
    """Parses the content of a file `where`; DataDamagedError unless it is one JSON object."""
    with errors_as(DataDamagedError, ValueError, "The JSON is not valid", where, remedy):
        values = parse_json(content, max_values=MAX_VALUES)
    if not isinstance(values, dict):
        raise DataDamagedError(
            f"The JSON must be an object, not of type {type(values).__name__}.",
            where=where,
            remedy=remedy,
        )
    return values
