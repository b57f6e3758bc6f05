"""Session file: a NumPy archive of texts' memory and newest tokens, and of their model's hash."""

import hashlib
import io
import json
from collections.abc import Mapping
from typing import IO

import keras
import numpy as np

from txl_tf.errors import DataDamagedError, InputMissingError, MismatchError
from txl_tf.storage.files import file_bytes, first_line, read_file, write_file
from txl_tf.storage.untrusted_files import read_array_archive, storage_errors

_FORMAT_VERSION = 2
# Most bytes of an archive besides the data of its arrays.
_OVERHEAD_BYTES = 1 << 16
_REMEDY = "Name a file that was saved before."


def model_identity(model: keras.Model) -> str:
    """Returns the SHA-256 of a model's class, configuration and weights."""
    own = [type(model).__name__, model.config.to_dict(), model.compute_dtype]
    digest = hashlib.sha256(json.dumps(own).encode())
    for variable in sorted(model.weights, key=lambda each: each.path):
        digest.update(f"{variable.path} {tuple(variable.shape)} {variable.dtype}\n".encode())
        digest.update(np.ascontiguousarray(variable).tobytes())
    return digest.hexdigest()


def write_session(path: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes a file completely or not at all."""
    stored = {name: array.view(_stored_dtype(array.dtype)) for name, array in arrays.items()}
    content = io.BytesIO()
    np.savez(content, format_version=np.int64(_FORMAT_VERSION), **stored)
    write_file(path, content.getvalue())


def _stored_dtype(dtype: np.dtype) -> np.dtype:
    """NumPy's format does not know bfloat16."""
    return np.dtype(np.uint16) if dtype.name == "bfloat16" else dtype


def read_session(
    path: str, expected: Mapping[str, np.ndarray], limits: Mapping[str, tuple[int, int]]
) -> dict[str, np.ndarray]:
    """Reads the arrays of a file that is not trusted.

    The arrays have the types and shapes of those expected, the same `model`, finite numbers, and
    values within `limits`. Raises InputMissingError, MismatchError and DataDamagedError.
    """
    most = sum(each.nbytes for each in expected.values()) + _OVERHEAD_BYTES
    with storage_errors("The session cannot be read", path, _REMEDY):
        try:
            if file_bytes(path) > most:
                raise _size_mismatch(path)
            content = read_file(path, max_bytes=most)
        except FileNotFoundError as error:
            raise InputMissingError("There is no session.", where=path, remedy=_REMEDY) from error
    arrays = _unpack(io.BytesIO(content), most, path)
    if arrays.keys() != expected.keys():
        raise _damaged(f"{len(expected)} arrays are expected, and {len(arrays)} are there", path)
    for name, like in expected.items():
        array, where = arrays[name], f"{path}, {name}"
        if array.dtype != _stored_dtype(like.dtype):
            raise _damaged(f"{like.dtype} is expected, and {array.dtype} is there", where)
        if array.shape != like.shape:
            raise _size_mismatch(where)
        arrays[name] = array = array.view(like.dtype)
        if array.dtype.kind not in "biuU" and not np.isfinite(array).all():
            raise _damaged("it has numbers that are not finite", where)
        least, most = limits.get(name, (None, None))
        if least is not None and not least <= array.min() <= array.max() <= most:
            what = f"it must be from {least} to {most}, and is from {array.min()} to {array.max()}"
            raise _damaged(what, where)
    if arrays["model"] != expected["model"]:
        raise MismatchError(
            "The session is of another model.",
            where=path,
            remedy="Use the checkpoint that it was begun with, or begin a new session.",
        )
    return {name: arrays[name] for name in expected}


def check_session(file: IO[bytes], where: str) -> int:
    """Returns the number of arrays of a file, checked without its model as by `read_session`."""
    return len(_unpack(file, None, where))


def _unpack(file: IO[bytes], max_bytes: int | None, where: str) -> dict[str, np.ndarray]:
    try:
        arrays = read_array_archive(file, max_bytes=max_bytes)
    except ValueError as error:
        raise _damaged(first_line(error), where) from error
    version = arrays.pop("format_version", None)
    if version is None or version.dtype != np.int64 or version.shape:
        raise _damaged("it has no format_version", where)
    if version != _FORMAT_VERSION:
        raise MismatchError(
            f"The session has format {version}; this version reads {_FORMAT_VERSION}.",
            where=where,
            remedy="Use the version of txl-tf that wrote it, or begin a new session.",
        )
    return arrays


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
