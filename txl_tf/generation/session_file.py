"""Session file: a NumPy archive with the memory of texts, their newest tokens and a header."""

import hashlib
import io
import json
from collections.abc import Mapping
from typing import IO

import keras
import numpy as np

from txl_tf.errors import DataDamagedError, InputMissingError, MismatchError, OutputExistsError
from txl_tf.storage.files import (
    file_bytes,
    file_sha256,
    first_line,
    path_exists,
    read_file,
    write_file,
)
from txl_tf.storage.untrusted_files import parse_json, read_array_archive, storage_errors

_FORMAT_VERSION = 2
_HEADER = "header"
_HEADER_KINDS = {"format_version": int, "model": str, "position": int}
# Most bytes of an archive besides the data of its arrays.
_OVERHEAD_BYTES = 1 << 16
LAST_POSITION = 2**31 - 1
"""Most tokens that a session writes."""


def model_identity(model: keras.Model) -> str:
    """Returns the SHA-256 of a model's class, configuration and weights."""
    own = [type(model).__name__, model.config.to_dict(), model.compute_dtype]
    digest = hashlib.sha256(json.dumps(own).encode())
    for variable in sorted(model.weights, key=lambda each: each.path):
        digest.update(f"{variable.path} {tuple(variable.shape)} {variable.dtype}\n".encode())
        digest.update(np.ascontiguousarray(variable).tobytes())
    return digest.hexdigest()


def write_session(
    path: str, model: str, position: int, arrays: Mapping[str, np.ndarray], replaces: str | None
) -> str:
    """Writes a file completely or not at all; returns the SHA-256 of its content.

    `replaces` is the SHA-256 of the only content that may be replaced. Raises OutputExistsError
    if another process has written the file since.
    """
    if replaces is not None and path_exists(path) and file_sha256(path) != replaces:
        raise OutputExistsError(
            "Another process has written this session since it was read.",
            where=path,
            remedy="Load it and continue from there, or save under another name.",
        )
    header = {"format_version": _FORMAT_VERSION, "model": model, "position": position}
    stored = {name: array.view(_stored_dtype(array.dtype)) for name, array in arrays.items()}
    content = io.BytesIO()
    np.savez(content, **{_HEADER: np.frombuffer(json.dumps(header).encode(), np.uint8)}, **stored)
    write_file(path, content.getvalue())
    return hashlib.sha256(content.getvalue()).hexdigest()


def _stored_dtype(dtype: np.dtype) -> np.dtype:
    """NumPy's format does not know bfloat16."""
    return np.dtype(np.uint16) if dtype.name == "bfloat16" else dtype


def read_session(
    path: str, model: str, expected: Mapping[str, np.ndarray], limits: Mapping[str, tuple[int, int]]
) -> tuple[int, dict[str, np.ndarray], str]:
    """Reads a file that is not trusted; returns position, arrays, and SHA-256 of its content.

    The arrays have the types and shapes of those expected, finite numbers, and values within
    `limits`. Raises InputMissingError, MismatchError for another model or other sizes, and
    DataDamagedError.
    """
    most = sum(each.nbytes for each in expected.values()) + _OVERHEAD_BYTES
    with storage_errors("The session cannot be read", path, "Name a file that was saved before."):
        try:
            if file_bytes(path) > most:
                raise _size_mismatch(path)
            content = read_file(path, max_bytes=most)
        except FileNotFoundError as error:
            remedy = "Name a file that was saved before."
            raise InputMissingError("There is no session.", where=path, remedy=remedy) from error
    arrays, header = _unpack(io.BytesIO(content), most, path)
    if header["model"] != model:
        raise MismatchError(
            "The session is of another model.",
            where=path,
            remedy="Use the checkpoint that it was begun with, or begin a new session.",
        )
    if arrays.keys() != expected.keys() or not 0 <= header["position"] <= LAST_POSITION:
        raise _damaged("its arrays or its position cannot be", path)
    for name, like in expected.items():
        where = f"{path}, {name}"
        if arrays[name].dtype != _stored_dtype(like.dtype):
            raise _damaged(f"{like.dtype} is expected, and {arrays[name].dtype} is there", where)
        if arrays[name].shape != like.shape:
            raise _size_mismatch(where)
        arrays[name] = array = arrays[name].view(like.dtype)
        if array.dtype.kind not in "biu" and not np.isfinite(array).all():
            raise _damaged("it has numbers that are not finite", where)
        least, most = limits.get(name, (None, None))
        if least is not None and not least <= array.min() <= array.max() <= most:
            what = f"it must be from {least} to {most}, and is from {array.min()} to {array.max()}"
            raise _damaged(what, where)
    return header["position"], arrays, hashlib.sha256(content).hexdigest()


def check_session(file: IO[bytes], where: str) -> int:
    """Returns the number of arrays of a file, checked without its model as by `read_session`."""
    return len(_unpack(file, None, where)[0])


def _unpack(
    file: IO[bytes], max_bytes: int | None, where: str
) -> tuple[dict[str, np.ndarray], dict]:
    try:
        arrays = read_array_archive(file, max_bytes=max_bytes)
        header = parse_json(arrays.pop(_HEADER, np.zeros(0, np.uint8)).tobytes())
    except ValueError as error:
        raise _damaged(first_line(error), where) from error
    kinds = {name: type(value) for name, value in header.items()} if type(header) is dict else {}
    if kinds != _HEADER_KINDS:
        raise _damaged(f"the header must have {', '.join(_HEADER_KINDS)}", where)
    if header["format_version"] != _FORMAT_VERSION:
        raise MismatchError(
            f"The session has format {header['format_version']}; this version reads "
            f"{_FORMAT_VERSION}.",
            where=where,
            remedy="Use the version of txl-tf that wrote it, or begin a new session.",
        )
    return arrays, header


def _size_mismatch(where: str) -> MismatchError:
    return MismatchError(
        "The session has another number of rows or another memory length.",
        where=where,
        remedy="Use those that it was begun with, or begin a new session.",
    )


def _damaged(what: str, where: str) -> DataDamagedError:
    return DataDamagedError(
        f"The file is no session, or damaged: {what}.", where=where, remedy="Begin a new one."
    )
