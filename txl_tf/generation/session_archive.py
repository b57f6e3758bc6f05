"""Contents of a session file: a NumPy archive of named arrays, and a header of JSON."""

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from typing import IO, Any

import keras
import numpy as np

from txl_tf.errors import DataDamagedError, MismatchError
from txl_tf.storage.array_files import read_array_archive
from txl_tf.storage.files import first_line
from txl_tf.storage.untrusted_files import parse_json

_FORMAT_VERSION = 1
_HEADER = "header"
_HEADER_KINDS = {"format_version": int, "model": dict, "values": dict}
_MAX_HEADER_BYTES = 1 << 20
# Most bytes of an archive for an array besides its data; 400 at present.
_OVERHEAD_BYTES = 1 << 10
LAST_POSITION = 2**31 - 1


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


def named_parts(name: str, part: Any) -> Iterator[tuple[str, Any]]:
    """Names the arrays of nested tuples, such as `memory.keys.0`, in TensorFlow's flat order."""
    if isinstance(part, tuple):
        fields = getattr(part, "_fields", range(len(part)))
        for field, each in zip(fields, part, strict=True):
            yield from named_parts(f"{name}.{field}", each)
    else:
        yield name, part


def pack_session(
    model: dict[str, Any], values: dict[str, Any], arrays: Mapping[str, np.ndarray]
) -> bytes:
    """Returns the contents of a session file; `model` is its `identity`."""
    header = {"format_version": _FORMAT_VERSION, "model": model, "values": values}
    contents = io.BytesIO()
    stored = {name: array.view(_stored_dtype(array.dtype)) for name, array in arrays.items()}
    np.savez(contents, **{_HEADER: np.frombuffer(json.dumps(header).encode(), np.uint8)}, **stored)
    return contents.getvalue()


def _stored_dtype(dtype: np.dtype) -> np.dtype:
    """NumPy's format does not know bfloat16."""
    return np.dtype(np.uint16) if dtype.name == "bfloat16" else dtype


def largest_file(expected: Mapping[str, np.ndarray]) -> int:
    """Returns the most bytes that a file with such arrays has."""
    overhead = _MAX_HEADER_BYTES + 2 * (len(expected) + 2) * _OVERHEAD_BYTES
    return sum(each.nbytes for each in expected.values()) + overhead


def unpack_session(
    content: bytes, model: dict[str, Any], expected: Mapping[str, np.ndarray], where: str
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Unpacks a file into its values, which are not checked, and its arrays, as those expected.

    Raises MismatchError if it belongs to another model or its arrays have other shapes, and
    DataDamagedError if it is damaged.
    """
    named, header = _read(io.BytesIO(content), largest_file(expected), where)
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
    if named.keys() != expected.keys():
        raise damaged(f"{len(expected)} arrays are expected, and {len(named)} are there", where)
    arrays = {}
    for name, like in expected.items():
        array = named[name]
        if array.dtype != _stored_dtype(like.dtype):
            raise damaged(
                f"{like.dtype} is expected, and {array.dtype} is there", f"{where}, {name}"
            )
        if array.shape != like.shape:
            raise size_mismatch(f"{where}, {name}")
        if array.dtype == bool and (array.view(np.uint8) > 1).any():
            raise damaged("it must be 0 and 1", f"{where}, {name}")
        arrays[name] = array.view(like.dtype)
    return header["values"], arrays


def check_session(file: IO[bytes], where: str) -> int:
    """Checks a file as far as possible without its model; returns the number of arrays.

    Raises DataDamagedError if it is damaged, and MismatchError for an unknown version.
    """
    return len(_read(file, None, where)[0])


def check_values(values: dict[str, Any], capacity: int, where: str) -> None:
    """Checks the values in a session's header; DataDamagedError if one is missing or invalid.

    `capacity` is the number of tokens beside memory.
    """
    place = f"{where}, header, values"
    if set(values) != {"position", "filled", "has_pending"}:
        raise damaged("the fields must be filled, has_pending, position", place)
    most = LAST_POSITION
    for name in ("position", "filled"):
        value = values[name]
        if type(value) is not int or not 0 <= value <= most:
            what = f"it must be from 0 to {most}, and is {ascii(value)[:40]}"
            raise damaged(what, f"{place}.{name}")
        most = min(capacity, value)
    if type(values["has_pending"]) is not bool or values["has_pending"] < bool(values["position"]):
        what = "it must be true or false, and true if tokens were written"
        raise damaged(what, f"{place}.has_pending")


def check_arrays(
    arrays: dict[str, np.ndarray],
    *,
    filled: int,
    memory_length: int,
    vocabulary_size: int,
    where: str,
) -> None:
    """Checks the arrays of a session, named as by `named_parts`.

    Raises DataDamagedError if a number is not finite, a length is too long or a token is not in
    the vocabulary.
    """
    limits = {
        "valid_length": (0, memory_length),
        "length": (filled, filled),
        "lengths": (0, filled),
        "pending": (0, vocabulary_size - 1),
    }
    for field, array in arrays.items():
        if array.dtype.kind not in "biu" and not np.isfinite(array).all():
            raise damaged("it has numbers that are not finite", f"{where}, {field}")
        least, most = limits.get(field.rpartition(".")[2], (None, None))
        if least is not None and array.size and not least <= array.min() <= array.max() <= most:
            what = f"it must be from {least} to {most}, and is from {array.min()} to {array.max()}"
            raise damaged(what, f"{where}, {field}")


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


def _read(
    file: IO[bytes], max_bytes: int | None, where: str
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns the arrays and the header of a file."""
    try:
        named = read_array_archive(file, max_bytes=max_bytes)
        raw = named.pop(_HEADER, None)
        if raw is None or raw.dtype != np.uint8 or raw.size > _MAX_HEADER_BYTES:
            raise ValueError("it has no header")
        header = parse_json(raw.tobytes())
    except ValueError as error:
        raise damaged(first_line(error), where) from error
    kinds = {name: type(value) for name, value in header.items()} if type(header) is dict else {}
    if kinds != _HEADER_KINDS:
        fields = ", ".join(f"{name} ({kind.__name__})" for name, kind in _HEADER_KINDS.items())
        raise damaged(f"the header must have {fields}", where)
    if header["format_version"] != _FORMAT_VERSION:
        raise MismatchError(
            f"The session has format {header['format_version']}; this version reads "
            f"{_FORMAT_VERSION}.",
            where=where,
            remedy="Use the version of txl-tf that wrote it, or begin a new session.",
        )
    return named, header
