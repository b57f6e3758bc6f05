"""Checks of the folders that a job is to write to."""

import os
import secrets
import shlex
import shutil
from pathlib import Path

from pipelines.diagnosis.finding import Finding
from txl_tf.errors import StorageError
from txl_tf.file_storage import (
    file_bytes,
    first_line,
    is_remote,
    path_exists,
    read_file,
    remove_file,
    write_file,
)

_CONTENT = b"txl doctor was here\n" * 100
_LEAST_BYTES = 1 << 30
_GOOD_BYTES = 10 << 30
_GIBIBYTE = 1 << 30


def check_folder(folder: str) -> Finding:
    """Writes, renames, reads and removes a file; a local one is forced to the disk.

    A folder that is not there yet is not made: what counts is the one that it
    would be made in.

    Args:
        folder: str. Local or remote (`gs://bucket/path`); a remote one needs
            TensorFlow.

    Returns:
        The `Finding`.
    """
    check = f"folder {folder}"
    existing = folder if is_remote(folder) else _existing_parent(folder)
    path = os.path.join(existing, f"txl-doctor-{secrets.token_hex(8)}")
    try:
        write_file(path, _CONTENT)
        try:
            is_whole = read_file(path) == _CONTENT and file_bytes(path) == len(_CONTENT)
        finally:
            remove_file(path)
        is_gone = not path_exists(path)
    except (OSError, ValueError, NotImplementedError) as error:
        return Finding.fault(check, first_line(error), _remedy(existing), StorageError)
    if not is_whole:
        return Finding.fault(
            check, "what is read is not what was written", _remedy(existing), StorageError
        )
    if not is_gone:
        return Finding.fault(
            check, "a removed file is still there", _remedy(existing), StorageError
        )
    if is_remote(folder):
        return Finding.ok(check, "written, renamed, read and removed")
    return _check_space(check, existing)


def _check_space(check: str, folder: str) -> Finding:
    free_bytes = shutil.disk_usage(folder).free
    what = f"{free_bytes / _GIBIBYTE:.1f} GiB free"
    remedy = f"df -h {shlex.quote(folder)}, and remove something"
    if free_bytes < _LEAST_BYTES:
        return Finding.fault(check, f"only {what}", remedy, StorageError)
    if free_bytes < _GOOD_BYTES:
        return Finding.warning(check, f"only {what}", remedy)
    return Finding.ok(check, f"written, forced to the disk, renamed, read and removed; {what}")


def _existing_parent(folder: str) -> str:
    path = Path(folder).absolute()
    while not path.exists():
        path = path.parent
    return str(path)


def _remedy(folder: str) -> str:
    if folder.startswith("gs://"):
        bucket = folder.split("/")[2]
        return f"gcloud storage ls gs://{bucket}, with the service account of this machine"
    if is_remote(folder):
        return "Check the address and the permissions."
    return f"ls -ld {shlex.quote(folder)}; df -h {shlex.quote(folder)}"
