"""Manifest of a checkpoint, written last and verified first."""

import hashlib
import json
import os
import re
from typing import Any

from txl_tf.errors import DataDamagedError, MismatchError, StorageError
from txl_tf.storage.files import file_bytes, file_sha256, first_line, is_remote
from txl_tf.storage.untrusted_files import listed_file, read_json_object

MANIFEST_FILE = "manifest.json"
ARRAYS_PREFIX = "state"
# 1: a hash of every file. 2: hashes of the arrays in memory instead of their file's.
FORMAT_VERSION = 2
_READABLE_VERSIONS = (1, 2)
_CHECKSUM = "manifest_sha256"
_RUN_ID = "run_id"
_INDEX_SUFFIX = ".index"
_INDEX_FILE = ARRAYS_PREFIX + _INDEX_SUFFIX
ARRAY_FILES = (f"{ARRAYS_PREFIX}.data-00000-of-00001", _INDEX_FILE)
"""What writing the arrays makes. It is not listed: a listing may be older than what is there."""
_DATA_FILE = re.compile(rf"{ARRAYS_PREFIX}\.data-\d{{5}}-of-\d{{5}}")
_FIELDS = {"step": int, "files": dict, "arrays": dict, "identity": dict}
_KINDS = {int: "an integer", dict: "an object"}


def manifest_text(
    folder: str,
    step: int,
    arrays: dict[str, dict[str, Any]],
    identity: dict[str, Any],
    ledger: dict[str, Any] | None = None,
    run_id: str | None = None,
) -> bytes:
    """Describes a folder in which the arrays have been written.

    Args:
        folder: str. Path of the folder.
        step: int. Steps done.
        arrays: dict of name to description, see `describe_arrays`.
        identity: dict of JSON values. The run that it belongs to.
        ledger: optional dict. `StepLedger.digest` at this step.
        run_id: optional str. Names this run among others of that identity.

    Returns:
        Contents of the manifest.

    Raises:
        OSError: If the files cannot be read.
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
    """Reads a checkpoint's manifest and verifies the files against it.

    The arrays' values are verified by `read_arrays`.

    Args:
        folder: str. Path of one checkpoint.

    Returns:
        The manifest.

    Raises:
        DataDamagedError: If a file is missing or not what was written.
        MismatchError: If it is whole and of a version that is not known.
    """
    path = os.path.join(folder, MANIFEST_FILE)
    try:
        manifest = read_json_object(path)
    except OSError as error:
        raise unreadable(error, path) from error
    # Before the version is looked at, because a flipped bit can be in that as well.
    if manifest.pop(_CHECKSUM, None) != checksum(manifest):
        raise damaged("the manifest does not match its own checksum, manifest_sha256", path)
    version = manifest.get("format_version")
    if version not in _READABLE_VERSIONS:
        raise MismatchError(
            f"The checkpoint is of format {version}; this version reads "
            f"{' and '.join(map(str, _READABLE_VERSIONS))}.",
            where=path,
            remedy="Use the version of txl-tf that wrote it, or a newer one.",
        )
    _check_fields(manifest, path)
    for name, expected in manifest["files"].items():
        _verify_file(folder, name, expected, path)
    return manifest


def stored_run_id(folder: str) -> str | None:
    """Returns the name of the run that a checkpoint says it is of.

    Args:
        folder: str. Path of one checkpoint.

    Returns:
        The name; `None` where it gives none, or cannot be read.

    Raises:
        OSError: If the storage does not answer.
    """
    try:
        run_id = read_json_object(os.path.join(folder, MANIFEST_FILE)).get(_RUN_ID)
    except (DataDamagedError, FileNotFoundError, NotADirectoryError):
        return None
    return run_id if isinstance(run_id, str) else None


def checksum(values: dict[str, Any]) -> str:
    """SHA-256 of JSON values, whatever the order of their keys.

    Args:
        values: dict of JSON values.

    Returns:
        The hash in hexadecimal.
    """
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def damaged(what: str, path: str) -> DataDamagedError:
    """Creates the error for a checkpoint file that differs from what was written."""
    return DataDamagedError(what, where=path, remedy="Restore it from a copy.")


def unreadable(error: OSError, path: str) -> DataDamagedError | StorageError:
    """Creates the error for a checkpoint file that cannot be read.

    A disk that cannot read a file has lost it. A store that is far away may be
    out of reach for now, and an older checkpoint would not help.
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
        # `True` is an int to Python, and no step.
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
