"""Layout of a generation session in its file."""

import hashlib
import io
import json
import math
from collections.abc import Mapping
from typing import IO, Any

import keras
import numpy as np
import tensorflow as tf

from txl_tf.errors import DataDamagedError, MismatchError
from txl_tf.storage.array_files import read_array_archive
from txl_tf.storage.files import first_line
from txl_tf.storage.untrusted_files import parse_json

_FORMAT_VERSION = 1
_HEADER = "header"
_HEADER_FIELDS = {"format_version", "model", "values", "arrays"}
_MAX_HEADER_BYTES = 1 << 20
# Most bytes of an archive for an array besides its data; 400 at present.
_OVERHEAD_BYTES = 1 << 10

Expected = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and dtype of each array by name."""


def identity(model: keras.Model) -> dict[str, Any]:
    """Returns a model's class, configuration and SHA-256 of its weights."""
    digest = hashlib.sha256()
    for variable in sorted(model.weights, key=lambda each: each.path):
        digest.update(f"{variable.path} {tuple(variable.shape)} {variable.dtype}\n".encode())
        digest.update(np.ascontiguousarray(variable).tobytes())
    return {
        "model": type(model).__name__,
        "config": model.config.to_dict(),
        "compute_dtype": model.compute_dtype,
        "weights_sha256": digest.hexdigest(),
    }


def pack_session(model: dict[str, Any], values: dict[str, Any], arrays: list[np.ndarray]) -> bytes:
    """Returns the contents of a session file, a NumPy archive; `model` is its `identity`."""
    header = {
        "format_version": _FORMAT_VERSION,
        "model": model,
        "values": values,
        "arrays": [[list(each.shape), tf.as_dtype(each.dtype).name] for each in arrays],
    }
    named = {_HEADER: np.frombuffer(json.dumps(header).encode(), np.uint8)}
    # NumPy's format does not know bfloat16, so all arrays are stored as bytes.
    named |= {f"array_{i}": _bytes_of(each) for i, each in enumerate(arrays)}
    contents = io.BytesIO()
    np.savez(contents, **named)
    return contents.getvalue()


def _bytes_of(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


def largest_file(expected: Expected) -> int:
    """Returns the most bytes that a file with these arrays has."""
    return _unpacked_bytes(expected) + (len(expected) + 2) * _OVERHEAD_BYTES


def unpack_session(
    content: bytes, model: dict[str, Any], expected: Expected, where: str
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Unpacks a file into its values, which are not checked, and its arrays by name.

    Raises MismatchError if it belongs to another model or its arrays are not as expected, and
    DataDamagedError if it is damaged.
    """
    try:
        named = read_array_archive(io.BytesIO(content), max_bytes=_unpacked_bytes(expected))
    except ValueError as error:
        raise damaged(first_line(error), where) from error
    header = _header_of(named.pop(_HEADER, None), where)
    _check_header(header, model, expected, where)
    if set(named) != {f"array_{index}" for index in range(len(expected))}:
        raise damaged(f"{len(expected)} arrays are expected, and {len(named)} are there", where)
    arrays = {
        field: _array_of(named[f"array_{index}"], *expected[field], f"{where}, {field}")
        for index, field in enumerate(expected)
    }
    return header["values"], arrays


def check_session(file: IO[bytes], where: str) -> int:
    """Checks a file as far as possible without its model; returns the number of arrays.

    All contents are read only if the file is an archive. Raises DataDamagedError if it is
    damaged, and MismatchError for an unknown version.
    """
    try:
        named = read_array_archive(file)
        header = _header_of(named.pop(_HEADER, None), where)
        expected = {
            f"array_{index}": (tuple(shape), dtype)
            for index, (shape, dtype) in enumerate(header["arrays"])
        }
        found = {name: array.nbytes for name, array in named.items()}
        needed = {
            name: math.prod(shape) * tf.as_dtype(dtype).size
            for name, (shape, dtype) in expected.items()
        }
    except (ValueError, TypeError) as error:
        raise damaged(first_line(error), where) from error
    if found != needed:
        name = min(
            name for name in found.keys() | needed.keys() if found.get(name) != needed.get(name)
        )
        raise damaged("an array is not of the size that the header says", f"{where}, {name}")
    return len(found)


def size_mismatch(where: str) -> MismatchError:
    """Creates the error for a saved session of other sizes than expected."""
    return MismatchError(
        "The session has another number of rows or another memory length.",
        where=where,
        remedy="Use those that it was begun with, or begin a new session.",
    )


def damaged(what: str, where: str) -> DataDamagedError:
    """Creates the error for an invalid session file; `what` is a clause."""
    return DataDamagedError(
        f"The file is no session, or damaged: {what}.", where=where, remedy="Begin a new one."
    )


def _unpacked_bytes(expected: Expected) -> int:
    arrays = sum(math.prod(shape) * tf.as_dtype(dtype).size for shape, dtype in expected.values())
    return arrays + _MAX_HEADER_BYTES + (len(expected) + 1) * _OVERHEAD_BYTES


def _header_of(raw: np.ndarray | None, where: str) -> dict[str, Any]:
    if raw is None or raw.dtype != np.uint8 or raw.ndim != 1 or raw.size > _MAX_HEADER_BYTES:
        raise damaged("it has no header", where)
    try:
        header = parse_json(raw.tobytes())
    except ValueError as error:
        raise damaged(f"the header is not JSON: {first_line(error)}", where) from error
    if not isinstance(header, dict) or type(header.get("format_version")) is not int:
        raise damaged("a format version is missing", f"{where}, header")
    if header["format_version"] != _FORMAT_VERSION:
        raise MismatchError(
            f"The session has format {header['format_version']}; this version reads "
            f"{_FORMAT_VERSION}.",
            where=where,
            remedy="Use the version of txl-tf that wrote it, or begin a new session.",
        )
    if set(header) != _HEADER_FIELDS:
        fields = ", ".join(sorted(_HEADER_FIELDS))
        raise damaged(f"the fields must be {fields}", f"{where}, header")
    for field, kind in (("model", dict), ("values", dict), ("arrays", list)):
        if not isinstance(header[field], kind):
            raise damaged(f"it must be a JSON {kind.__name__}", f"{where}, header, {field}")
    return header


def _check_header(
    header: dict[str, Any], model: dict[str, Any], expected: Expected, where: str
) -> None:
    # JSON turns tuples into lists.
    current, found = json.loads(json.dumps(model)), header["model"]
    differing = sorted(
        ascii(name)[1:-1][:80]
        for name in current.keys() | found.keys()
        if name not in current or found.get(name) != current[name]
    )
    if differing:
        raise MismatchError(
            f"The session is of another model: {', '.join(differing[:8])} differ.",
            where=where,
            remedy="Use the checkpoint that it was begun with, or begin a new session.",
        )
    if header["arrays"] != [[list(shape), dtype] for shape, dtype in expected.values()]:
        raise size_mismatch(where)


def _array_of(raw: np.ndarray, shape: tuple[int, ...], dtype: str, where: str) -> np.ndarray:
    kind = np.dtype(tf.as_dtype(dtype).as_numpy_dtype)
    num_bytes = math.prod(shape) * kind.itemsize
    if raw.dtype != np.uint8 or raw.shape != (num_bytes,):
        raise damaged(f"{num_bytes:,} bytes are expected", where)
    if kind.kind == "b" and (raw > 1).any():
        raise damaged("it must be 0 and 1", where)
    return raw.view(kind).reshape(shape) if num_bytes else np.zeros(shape, kind)
