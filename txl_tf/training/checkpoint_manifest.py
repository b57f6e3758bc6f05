"""What a checkpoint consists of, written into it last and verified first."""

import hashlib
import json
import os
from typing import Any

from txl_tf.errors import DataDamagedError, MismatchError, StorageError
from txl_tf.file_storage import (
    file_bytes,
    file_sha256,
    first_line,
    is_remote,
    list_folder,
    read_file,
)

MANIFEST_FILE = "manifest.json"
ARRAYS_PREFIX = "state"
# 1: a hash of every file. 2: hashes of the arrays in memory instead of their file's.
FORMAT_VERSION = 2
_READABLE_VERSIONS = (1, 2)
_CHECKSUM = "manifest_sha256"
_INDEX_SUFFIX = ".index"


def manifest_text(
    folder: str, step: int, arrays: dict[str, dict[str, Any]], identity: dict[str, Any]
) -> bytes:
    """Describes a folder in which the arrays have been written.

    Args:
        folder: str. Path of the folder.
        step: int. Steps done.
        arrays: dict of name to description, see `describe_arrays`.
        identity: dict of JSON values. The run that it belongs to.

    Returns:
        Contents of the manifest.

    Raises:
        OSError: If the files cannot be read.
    """
    files = {}
    for name in list_folder(folder):
        if not name.startswith(ARRAYS_PREFIX):
            continue
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
        manifest = json.loads(read_file(path))
        is_whole = manifest.pop(_CHECKSUM) == checksum(manifest)
        version = manifest["format_version"]
    except OSError as error:
        raise unreadable(error, path) from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise damaged("the manifest cannot be read", path) from error
    # Before the version is looked at, because a flipped bit can be in that as well.
    if not is_whole:
        raise damaged("the manifest does not match its own checksum", path)
    if version not in _READABLE_VERSIONS:
        raise MismatchError(
            f"The checkpoint is of format {version}; this version reads "
            f"{' and '.join(map(str, _READABLE_VERSIONS))}.",
            where=path,
            remedy="Use the version of txl-tf that wrote it, or a newer one.",
        )
    for name, expected in manifest["files"].items():
        _verify_file(os.path.join(folder, name), expected)
    return manifest


def checksum(values: dict[str, Any]) -> str:
    """SHA-256 of JSON values, whatever the order of their keys.

    Args:
        values: dict of JSON values.

    Returns:
        The hash in hexadecimal.
    """
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def damaged(what: str, path: str) -> DataDamagedError:
    """The error about a file of a checkpoint that is not what was written."""
    return DataDamagedError(what, where=path, remedy="Restore it from a copy.")


def unreadable(error: OSError, path: str) -> DataDamagedError | StorageError:
    """The error about a file of a checkpoint that cannot be read.

    A disk that cannot read a file has lost it. A store that is far away may be
    out of reach for now, and an older checkpoint would not help.
    """
    if isinstance(error, FileNotFoundError):
        return damaged("the file is missing", path)
    what = f"the file cannot be read: {first_line(error)}"
    if is_remote(path):
        return StorageError(what, where=path, remedy="Start again when the storage answers.")
    return damaged(what, path)


def _verify_file(path: str, expected: dict[str, Any]) -> None:
    try:
        is_same = file_bytes(path) == expected["bytes"] and (
            "sha256" not in expected or file_sha256(path) == expected["sha256"]
        )
    except OSError as error:
        raise unreadable(error, path) from error
    if not is_same:
        raise damaged("the file is not what was written", path)
