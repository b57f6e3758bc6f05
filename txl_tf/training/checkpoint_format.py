"""Arrays and manifest of a checkpoint: checked, hashed, written, read and verified.

The hash of an array covers its values in memory, not the file. So nothing is read twice, which
counts on remote storage, and the run continues with exactly the values that were verified. The
manifest is written last and verified first.
"""

import concurrent.futures
import hashlib
import json
import os
import re
from typing import Any

import numpy as np
import tensorflow as tf

from txl_tf.distribution.remote_hosts import this_host
from txl_tf.errors import DataDamagedError, MismatchError, NonFiniteError, StorageError
from txl_tf.storage.files import file_bytes, file_sha256, first_line, is_remote
from txl_tf.storage.untrusted_files import (
    listed_file,
    open_tensor_bundle,
    read_json_object,
    reading_failed,
)

MANIFEST_FILE = "manifest.json"
ARRAYS_PREFIX = "state"
FORMAT_VERSION = 2
_CHECKSUM = "manifest_sha256"
_RUN_ID = "run_id"
_INDEX_SUFFIX = ".index"
_INDEX_FILE = ARRAYS_PREFIX + _INDEX_SUFFIX
ARRAY_FILES = (f"{ARRAYS_PREFIX}.data-00000-of-00001", _INDEX_FILE)
"""Files of the arrays; they are not listed, because a listing may be outdated."""
_DATA_FILE = re.compile(rf"{ARRAYS_PREFIX}\.data-\d{{5}}-of-\d{{5}}")
_FIELDS = {"step": int, "files": dict, "arrays": dict, "identity": dict}
_KINDS = {int: "an integer", dict: "an object"}
_REMEDY = "Restore it from a copy."
# Small enough to stay in a core's cache between the check and the hash.
_BLOCK_BYTES = 1 << 20
# More would take cores from the input pipeline.
_MAX_THREADS = 8
# A float is infinite or not a number when all bits of its exponent are set.
_EXPONENT_BITS = {
    "float16": (np.uint16, 0x7C00),
    "bfloat16": (np.uint16, 0x7F80),
    "float32": (np.uint32, 0x7F800000),
    "float64": (np.uint64, 0x7FF0000000000000),
}


def manifest_text(
    folder: str,
    step: int,
    arrays: dict[str, dict[str, Any]],
    identity: dict[str, Any],
    ledger: dict[str, Any] | None = None,
    run_id: str | None = None,
) -> bytes:
    """Creates the contents of the manifest of a folder that holds the arrays.

    `arrays` is from `describe_arrays` and `ledger` from `StepLedger.digest` at this step. `run_id`
    distinguishes runs of equal identity.
    """
    files = {}
    for name in ARRAY_FILES:
        path = os.path.join(folder, name)
        files[name] = {"bytes": file_bytes(path)}
        if name.endswith(_INDEX_SUFFIX):
            files[name]["sha256"] = file_sha256(path)
    manifest = {
        "format_version": FORMAT_VERSION,
        "step": step,
        "files": files,
        "arrays": arrays,
        "identity": identity,
    }
    if ledger is not None:
        manifest["ledger"] = ledger
    if run_id is not None:
        manifest[_RUN_ID] = run_id
    manifest[_CHECKSUM] = checksum(manifest)
    return json.dumps(manifest, indent=1).encode()


def verified_manifest(folder: str) -> dict[str, Any]:
    """Reads the manifest of a checkpoint and verifies the files against it, but not the arrays.

    Raises DataDamagedError if a file is missing or altered, and MismatchError if the manifest is
    whole but its version is unknown.
    """
    path = os.path.join(folder, MANIFEST_FILE)
    try:
        manifest = read_json_object(path)
    except OSError as error:
        raise unreadable(error, path) from error
    # Before the version, because a flipped bit may be there as well.
    if manifest.pop(_CHECKSUM, None) != checksum(manifest):
        raise damaged("the manifest does not match its own checksum, manifest_sha256", path)
    version = manifest.get("format_version")
    if version != FORMAT_VERSION:
        raise MismatchError(
            f"The checkpoint is of format {version}; this version reads {FORMAT_VERSION}.",
            where=path,
            remedy="Use the version of txl-tf that wrote it, or a newer one.",
        )
    _check_fields(manifest, path)
    for name, expected in manifest["files"].items():
        _verify_file(folder, name, expected, path)
    return manifest


def stored_run_id(folder: str) -> str | None:
    """Returns the run id of a checkpoint; `None` if the id is missing or the manifest damaged."""
    try:
        run_id = read_json_object(os.path.join(folder, MANIFEST_FILE)).get(_RUN_ID)
    except (DataDamagedError, FileNotFoundError, NotADirectoryError):
        return None
    return run_id if isinstance(run_id, str) else None


def checksum(values: dict[str, Any]) -> str:
    """Returns the hexadecimal SHA-256 of JSON values, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def damaged(what: str, path: str) -> DataDamagedError:
    """Creates the error for a checkpoint file that was altered."""
    return DataDamagedError(what, where=path, remedy=_REMEDY)


def unreadable(error: OSError, path: str) -> DataDamagedError | StorageError:
    """Creates the error for a checkpoint file that cannot be read.

    A local disk has lost the file. A remote store may answer later, and an older checkpoint would
    not help.
    """
    if isinstance(error, FileNotFoundError):
        return damaged("the file is missing", path)
    what = f"the file cannot be read: {first_line(error)}"
    if is_remote(path):
        return StorageError(what, where=path, remedy="Start again when the storage answers.")
    return damaged(what, path)


def _check_fields(manifest: dict[str, Any], path: str) -> None:
    """Checks the types and ranges of the manifest's fields."""
    for name, kind in _FIELDS.items():
        # Not `isinstance`, which accepts `True` as an integer.
        if type(manifest.get(name)) is not kind:
            what = f"the field `{name}` must be {_KINDS[kind]}"
            raise damaged(f"{what}. Received: {ascii(manifest.get(name))[:100]}", path)
    if manifest["step"] < 0:
        raise damaged(f"the field `step` is {manifest['step']}", path)
    files = manifest["files"]
    data_files = [name for name in files if _DATA_FILE.fullmatch(name)]
    if _INDEX_FILE not in files or len(files) != len(data_files) + 1 or not data_files:
        raise damaged(
            f"the field `files` must name the index and the data. Received: {[*files][:4]}", path
        )
    for name, expected in files.items():
        if not isinstance(expected, dict) or not {"bytes"} <= {*expected} <= {"bytes", "sha256"}:
            raise damaged(f"the field `files` does not describe {name}", path)


def _verify_file(folder: str, name: str, expected: dict[str, Any], manifest_path: str) -> None:
    path = os.path.join(folder, name)
    try:
        num_bytes = file_bytes(path)
        listed_file(folder, name, listed_in=manifest_path)
        is_same = num_bytes == expected["bytes"] and (
            "sha256" not in expected or file_sha256(path) == expected["sha256"]
        )
    except OSError as error:
        raise unreadable(error, path) from error
    if not is_same:
        raise damaged("the file is not what was written", path)


def describe_arrays(step: int, arrays: dict[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Returns `dtype`, `shape` and `sha256` of the values in memory order, by name of the array.

    Raises NonFiniteError if a floating array holds an infinity or NaN.
    """
    names = sorted(arrays)
    with concurrent.futures.ThreadPoolExecutor(_num_threads()) as executor:
        results = executor.map(lambda name: _describe(arrays[name]), names)
        descriptions = dict(zip(names, results, strict=True))
    damaged = [name for name in names if not descriptions[name].pop("is_finite")]
    if damaged:
        more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        raise NonFiniteError(
            f"The state of step {step} is not finite and is not saved.",
            where=f"{damaged[0]}{more}",
            remedy="Start again from the last checkpoint, which is finite.",
        )
    return descriptions


def write_arrays(prefix: str, arrays: dict[str, np.ndarray]) -> None:
    """Writes arrays in TensorFlow's checkpoint format under plain names.

    `prefix` is the beginning of the paths. Raises OSError or `tf.errors.OpError`.
    """
    names = sorted(arrays)
    # TensorFlow might place this on an accelerator or another host.
    with this_host():
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[tf.convert_to_tensor(arrays[name]) for name in names],
        )


def read_arrays(prefix: str, descriptions: dict[str, Any]) -> dict[str, np.ndarray]:
    """Reads the arrays of a checkpoint and verifies them against `describe_arrays`.

    Raises DataDamagedError if they differ, and StorageError if the storage does not answer.
    """
    try:
        reader, stored = open_tensor_bundle(prefix, remedy=_REMEDY)
    except OSError as error:
        raise unreadable(error, f"{prefix}.index") from error
    _check_descriptions(stored, descriptions, prefix)
    try:
        with concurrent.futures.ThreadPoolExecutor(_num_threads()) as executor:
            arrays, checks = {}, {}
            for name in sorted(stored):
                arrays[name] = np.asarray(reader.get_tensor(name))
                checks[name] = executor.submit(_matches, arrays[name], descriptions[name])
    except (OSError, tf.errors.OpError, RuntimeError, ValueError) as error:
        raise reading_failed(error, prefix, _REMEDY) from error
    for name, check in checks.items():
        if not check.result():
            raise damaged(f"the array `{name}` is not what was written", _data_file(prefix))
    return arrays


def _check_descriptions(
    stored: dict[str, tuple[str, tuple[int, ...]]], descriptions: dict[str, Any], prefix: str
) -> None:
    """Compares stored with described arrays before any array is read."""
    if stored.keys() != descriptions.keys():
        differing = ascii(min(stored.keys() ^ descriptions.keys()))[1:-1]
        raise damaged(f"the array `{differing[:200]}` is on one side only", f"{prefix}.index")
    for name, (dtype, shape) in stored.items():
        description = descriptions[name]
        if (
            not isinstance(description, dict)
            or description.get("dtype") != dtype
            or description.get("shape") != [*shape]
        ):
            what = f"the array `{name}` of {dtype} {[*shape]}"
            raise damaged(f"{what} is not what was written", _data_file(prefix))


def _describe(array: np.ndarray) -> dict[str, Any]:
    array = np.asarray(array)
    # Reshaped, because an array without axes has no view of another dtype.
    flat = np.ascontiguousarray(array).reshape(-1)
    digest = hashlib.sha256()
    is_finite = True
    unsigned, mask = _EXPONENT_BITS.get(array.dtype.name, (np.uint8, 0))
    words = flat.view(unsigned) if mask else flat.view(np.uint8)
    exponents = np.empty(_BLOCK_BYTES // words.itemsize, words.dtype)
    for start in range(0, words.size, exponents.size):
        block = words[start : start + exponents.size]
        digest.update(block.view(np.uint8).data)
        if mask:
            found = np.bitwise_and(block, unsigned(mask), out=exponents[: block.size])
            is_finite = is_finite and bool(found.max() != mask)
    return {
        "dtype": array.dtype.name,
        "shape": [*array.shape],
        "sha256": digest.hexdigest(),
        "is_finite": is_finite,
    }


def _matches(array: np.ndarray, description: Any) -> bool:
    found = _describe(array)
    # Arrays that are not finite are damage even with a matching hash: no save writes them.
    return found.pop("is_finite") and found == description


def _num_threads() -> int:
    return min(_MAX_THREADS, os.cpu_count() or 1)


def _data_file(prefix: str) -> str:
    return f"{prefix}.data-00000-of-00001"
