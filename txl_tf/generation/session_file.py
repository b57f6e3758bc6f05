"""The file that a generation session is kept in."""

import hashlib
import io
import json
import os
import zipfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from txl_tf.errors import DataDamagedError, InputMissingError, MismatchError
from txl_tf.file_storage import read_file, write_file

_FORMAT_VERSION = 1
_HEADER = "header"


def identity(model: keras.Model) -> dict[str, Any]:
    """What a session depends on besides its own contents.

    Args:
        model: the model that writes.

    Returns:
        Dict of the model's class, its configuration and the SHA-256 of its
        weights.
    """
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


def write(
    path: str | os.PathLike[str],
    model: dict[str, Any],
    values: dict[str, Any],
    arrays: list[np.ndarray],
) -> None:
    """Writes a session, whole or not at all.

    Args:
        path: path of the file.
        model: dict. `identity` of the model.
        values: dict of JSON values.
        arrays: list of arrays.

    Raises:
        OSError: If it cannot be written.
    """
    header = {
        "format_version": _FORMAT_VERSION,
        "model": model,
        "values": values,
        "arrays": [[list(each.shape), tf.as_dtype(each.dtype).name] for each in arrays],
    }
    named = {_HEADER: np.frombuffer(json.dumps(header).encode(), np.uint8)}
    # NumPy's format knows no bfloat16, so all that is kept are bytes.
    named |= {f"array_{i}": _bytes_of(each) for i, each in enumerate(arrays)}
    contents = io.BytesIO()
    np.savez(contents, **named)
    write_file(os.fspath(path), contents.getvalue())


def _bytes_of(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


def read(
    path: str | os.PathLike[str], model: dict[str, Any], expected: list[tuple[tuple, str]]
) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Reads a session.

    Args:
        path: path of the file.
        model: dict. `identity` of the model that is to go on.
        expected: shape and dtype of each array.

    Returns:
        Tuple of the values and the arrays that were written.

    Raises:
        InputMissingError: If there is no such file.
        MismatchError: If it is of another model, or its arrays are not what is
            expected.
        DataDamagedError: If it is no such file, or damaged.
    """
    where = os.fspath(path)
    try:
        contents = io.BytesIO(read_file(where))
        with np.load(contents, allow_pickle=False) as archive:
            header = json.loads(archive[_HEADER].tobytes())
            _check_version(header, where)
            _check_header(header, model, expected, where)
            raw = [archive[f"array_{index}"].tobytes() for index in range(len(expected))]
        arrays = [_array_of(*pair) for pair in zip(raw, expected, strict=True)]
    except FileNotFoundError as error:
        raise InputMissingError(
            "There is no session.", where=where, remedy="Name a file that was saved before."
        ) from error
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, RuntimeError) as error:
        raise DataDamagedError(
            "The file is no session, or damaged.", where=where, remedy="Begin a new one."
        ) from error
    return header["values"], arrays


def _array_of(raw: bytes, expected: tuple[tuple, str]) -> np.ndarray:
    shape, dtype = expected
    return np.frombuffer(raw, tf.as_dtype(dtype).as_numpy_dtype).reshape(shape).copy()


def _check_version(header: dict[str, Any], where: str) -> None:
    if header["format_version"] != _FORMAT_VERSION:
        raise MismatchError(
            f"The session has format {header['format_version']}; this version reads "
            f"{_FORMAT_VERSION}.",
            where=where,
            remedy="Use the version of txl-tf that wrote it, or begin a new session.",
        )


def _check_header(
    header: dict[str, Any], model: dict[str, Any], expected: list[tuple[tuple, str]], where: str
) -> None:
    # What was read went through JSON.
    current = json.loads(json.dumps(model))
    differing = sorted(name for name in current if header["model"].get(name) != current[name])
    if differing:
        raise MismatchError(
            f"The session is of another model: {', '.join(differing)} differ.",
            where=where,
            remedy="Use the checkpoint that it was begun with, or begin a new session.",
        )
    if header["arrays"] != [[list(shape), dtype] for shape, dtype in expected]:
        raise MismatchError(
            "The session has another number of rows or another memory length.",
            where=where,
            remedy="Use those that it was begun with, or begin a new session.",
        )
