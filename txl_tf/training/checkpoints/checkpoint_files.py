"""Files of a checkpoint: written, and verified when they are read.

A checkpoint is a folder with two files. `state.data` has the bytes of all arrays, one after the
other. `manifest.json`, which is written last, has the type, shape and CRC-32 of each array in this
order, the identity of the run, and its own SHA-256. `read_checkpoint` decides whether a checkpoint
is valid.
"""

import json
import math
import os
import zlib
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from txl_tf.errors import (
    DataDamagedError,
    MismatchError,
    NonFiniteError,
    StorageError,
    first_line,
)
from txl_tf.storage.files import file_blocks, is_remote, open_new
from txl_tf.storage.listed_files import listed_file
from txl_tf.storage.strict_json import json_sha256, read_json_object

MANIFEST_FILE = "manifest.json"
DATA_FILE = "state.data"
FORMAT_VERSION = 4
REMEDY = "Restore the checkpoint from a copy."
# Arrays are written in blocks of 8 MiB, so that a large one is not copied as a whole.
_BLOCK_BYTES = 8 << 20
_CHECKSUM = "sha256"


def read_checkpoint(folder: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Reads manifest and arrays of a checkpoint.

    The checkpoint is valid if this succeeds. Raises DataDamagedError if a file is missing or
    altered, MismatchError for another version, and StorageError if a store does not answer.
    """
    manifest, path = read_manifest(folder), os.path.join(folder, DATA_FILE)
    try:
        return manifest, _read_arrays(folder, manifest["arrays"])
    except OSError as error:
        raise _unreadable(error, path) from error
    except (TypeError, ValueError) as error:
        raise DataDamagedError(
            f"the arrays cannot be read: {first_line(error)}", where=path, remedy=REMEDY
        ) from error


def _read_arrays(folder: str, entries: Mapping[str, Any]) -> dict[str, np.ndarray]:
    dtypes = [
        # NumPy does not know bfloat16 by its name.
        np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        for dtype, _, _ in entries.values()
    ]
    sizes = [
        math.prod(shape) * dtype.itemsize
        for dtype, (_, shape, _) in zip(dtypes, entries.values(), strict=True)
    ]
    listed_in = os.path.join(folder, MANIFEST_FILE)
    path = listed_file(folder, DATA_FILE, listed_in=listed_in, num_bytes=sum(sizes))
    arrays, blocks, buffer = {}, file_blocks(path), memoryview(b"")
    for dtype, size, (name, (_, shape, crc32)) in zip(dtypes, sizes, entries.items(), strict=True):
        content, num_filled = np.empty(size, np.uint8), 0
        while num_filled < size:
            buffer = buffer or memoryview(next(blocks, b""))
            part = np.frombuffer(buffer[: size - num_filled], np.uint8)
            if not len(part):
                raise ValueError("the file has become shorter")
            content[num_filled : num_filled + len(part)] = part
            num_filled, buffer = num_filled + len(part), buffer[len(part) :]
        if zlib.crc32(content.data) != crc32:
            raise ValueError(f"the content of `{name}` was altered")
        arrays[name] = content.view(dtype).reshape(shape)
    return arrays


def read_manifest(folder: str) -> dict[str, Any]:
    """Reads the manifest of a checkpoint; raises the errors of `read_checkpoint`."""
    path = os.path.join(folder, MANIFEST_FILE)
    try:
        manifest = unsealed(path, REMEDY)
    except OSError as error:
        raise _unreadable(error, path) from error
    version = manifest.get("format_version")
    if version != FORMAT_VERSION:
        raise MismatchError(
            f"The checkpoint has format {ascii(version)[:40]}; this version of txl-tf reads format "
            f"{FORMAT_VERSION}.",
            where=path,
            remedy="Use the version of txl-tf that wrote it.",
        )
    return manifest


def write_checkpoint(
    folder: str,
    step: int,
    arrays: Mapping[str, np.ndarray],
    identity: dict[str, Any],
    ledger: dict[str, Any] | None = None,
) -> bytes:
    """Writes the arrays of a checkpoint to a folder.

    Returns the content of the manifest, which the caller writes last.
    """
    entries = {}
    with open_new(os.path.join(folder, DATA_FILE)) as file:
        for name in sorted(arrays):
            array = np.asarray(arrays[name])
            content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            for start in range(0, len(content), _BLOCK_BYTES):
                file.write(content[start : start + _BLOCK_BYTES].tobytes())
            entries[name] = (array.dtype.name, array.shape, zlib.crc32(content.data))
    manifest = {
        "format_version": FORMAT_VERSION,
        "step": step,
        "arrays": entries,
        "identity": identity,
    }
    return sealed(manifest if ledger is None else manifest | {"ledger": ledger})


def require_finite(step: int, arrays: Mapping[str, np.ndarray]) -> None:
    """Raises NonFiniteError if an array has an infinity or NaN."""
    bad_names = [name for name in sorted(arrays) if not _is_finite(np.asarray(arrays[name]))]
    if bad_names:
        more = f" and {len(bad_names) - 1} more" if len(bad_names) > 1 else ""
        raise NonFiniteError(
            f"The state of step {step} is not finite and is not saved.",
            where=f"{bad_names[0]}{more}",
            remedy="Start again from the last checkpoint, which is finite.",
        )


def _is_finite(array: np.ndarray) -> bool:
    # `np.isfinite(array)` would need memory for all its results. A NaN makes minimum and maximum
    # NaN, and NumPy warns about it for bfloat16.
    with np.errstate(invalid="ignore"):
        return not array.size or bool(np.isfinite(array.min()) and np.isfinite(array.max()))


def sealed(values: dict[str, Any]) -> bytes:
    """Returns values as JSON with a checksum of themselves, which `unsealed` verifies."""
    return json.dumps(values | {_CHECKSUM: json_sha256(values)}, indent=1).encode()


def unsealed(path: str, remedy: str) -> dict[str, Any]:
    """Reads a file with the content of `sealed`.

    Raises DataDamagedError if the values do not match their checksum.
    """
    values = read_json_object(path, remedy=remedy)
    if values.pop(_CHECKSUM, None) != json_sha256(values):
        raise DataDamagedError(
            "the file does not match its own checksum", where=path, remedy=remedy
        )
    return values


def _unreadable(error: OSError, path: str) -> DataDamagedError | StorageError:
    """Creates the error for a file of a checkpoint that cannot be read.

    If a remote store fails, it is a StorageError: the store may answer later, and would not give an
    older checkpoint now.
    """
    is_missing = isinstance(error, FileNotFoundError)
    what = "the file is missing" if is_missing else f"the file cannot be read: {first_line(error)}"
    if is_remote(path) and not is_missing:
        return StorageError(what, where=path, remedy="Start again when the storage answers.")
    return DataDamagedError(what, where=path, remedy=REMEDY)
