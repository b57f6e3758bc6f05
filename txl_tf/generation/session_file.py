"""File of a saved session: a NumPy archive of memory, newest tokens and the hash of the model."""

import hashlib
import io
import json
from collections.abc import Mapping
from typing import IO

import keras
import numpy as np

from txl_tf.errors import DataDamagedError, InputMissingError, MismatchError
from txl_tf.storage.array_archives import read_array_archive
from txl_tf.storage.files import file_bytes, first_line, read_file, write_file
from txl_tf.storage.untrusted_files import storage_errors

_FORMAT_VERSION = 4
# Most bytes of an archive besides the data of its arrays.
_OVERHEAD_BYTES = 1 << 16
_REMEDY = "Name the file of a saved session."


def model_identity(model: keras.Model) -> str:
    """Returns the SHA-256 of a model's class, configuration and weights."""
    own = [_FORMAT_VERSION, type(model).__name__, model.config.to_dict(), model.compute_dtype]
    digest = hashlib.sha256(json.dumps(own).encode())
    for variable in sorted(model.weights, key=lambda each: each.path):
        digest.update(f"{variable.path} {tuple(variable.shape)} {variable.dtype}\n".encode())
        digest.update(np.ascontiguousarray(variable).tobytes())
    return digest.hexdigest()


def write_session(path: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes a file completely or not at all."""
    content = io.BytesIO()
    np.savez(content, **{name: array.view(_stored_dtype(array)) for name, array in arrays.items()})
    write_file(path, content.getvalue())


def _stored_dtype(array: np.ndarray) -> np.dtype:
    """Returns the dtype in a file: NumPy's format does not know bfloat16."""
    return np.dtype(np.uint16) if array.dtype.name == "bfloat16" else array.dtype


def read_session(path: str, expected: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Reads the arrays of a file, which have the types and shapes of the expected ones.

    `model` is the same. Raises InputMissingError, MismatchError and DataDamagedError.
    """
    most = sum(each.nbytes for each in expected.values()) + _OVERHEAD_BYTES
    differs = MismatchError(
        "The session was saved with another model, number of rows or memory length.",
        where=path,
        remedy="Load it with the same model, rows and memory length, or begin a new session.",
    )
    with storage_errors("The session cannot be read", path, _REMEDY):
        try:
            if file_bytes(path) > most:
                raise differs
            stored_arrays = _arrays_of(io.BytesIO(read_file(path, max_bytes=most)), most, path)
        except FileNotFoundError as error:
            raise InputMissingError("The file is missing.", where=path, remedy=_REMEDY) from error
    types = {name: (_stored_dtype(each), each.shape) for name, each in expected.items()}
    if {name: (each.dtype, each.shape) for name, each in stored_arrays.items()} != types:
        raise differs
    arrays = {name: stored_arrays[name].view(each.dtype) for name, each in expected.items()}
    if arrays["model"] != expected["model"]:
        raise differs
    return arrays


def check_session(file: IO[bytes], where: str) -> int:
    """Returns the number of arrays of a file, whatever its model; DataDamagedError without any."""
    return len(_arrays_of(file, None, where))


def _arrays_of(file: IO[bytes], max_bytes: int | None, where: str) -> dict[str, np.ndarray]:
    try:
        arrays = read_array_archive(file, max_bytes=max_bytes)
    except ValueError as error:
        raise _damaged(first_line(error), where) from error
    if "model" not in arrays:
        raise _damaged("the array `model` is missing", where)
    return arrays


def _damaged(what: str, where: str) -> DataDamagedError:
    return DataDamagedError(
        f"The file is damaged or no session: {what}.", where=where, remedy="Begin a new session."
    )
