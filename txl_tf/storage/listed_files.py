"""Files of a folder that a manifest or a list of checksums names, which may come from strangers."""

import os
import re
import stat
from collections.abc import Callable
from typing import Any

from txl_tf.errors import DataDamagedError, storage_errors
from txl_tf.storage.files import (
    RESTORE_REMEDY,
    file_bytes,
    file_sha256,
    is_folder,
    is_remote,
    list_folder,
    read_file,
)
from txl_tf.storage.strict_json import MAX_DESCRIPTION_BYTES

CHECKSUMS_FILE = "SHA256SUMS"
"""SHA-256 of all files of a folder, in the format of `sha256sum`."""
_CHECKSUM_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")
_NO_NAME = re.compile(r"[\x00-\x1f\x7f\\]|://")


def listed_file(
    folder: str, name: Any, *, listed_in: str, remedy: str = RESTORE_REMEDY, num_bytes: Any = None
) -> str:
    """Returns the path of a file that a manifest or a list of checksums names.

    Raises DataDamagedError unless `name` is a regular file inside the folder: a device or a pipe
    might never end, and a link could lead out of the folder. If `num_bytes` is not None, the file
    must have this size.

    Args:
        folder: str. Folder of the list.
        name: Name as the list has it, which may be any JSON value.
        listed_in: str. Path of the list, for errors.
        remedy: str. What to do about a damaged file. Defaults to `RESTORE_REMEDY`.
        num_bytes: Size as the list has it, which may be any JSON value. Defaults to `None`.
    """
    parts = name.split("/") if isinstance(name, str) and not _NO_NAME.search(name) else [""]
    if {"", ".", ".."}.intersection(parts):
        raise DataDamagedError(
            f"Listed files must be inside the folder. Received: {ascii(name)[:200]}",
            where=listed_in,
            remedy=remedy,
        )
    path = os.path.join(folder, name)
    if not is_remote(folder):
        has_link = os.path.realpath(path) != os.path.join(os.path.realpath(folder), name)
        if has_link or (os.path.exists(path) and not os.path.isfile(path)):
            raise DataDamagedError(
                "A listed file must be a regular file in the folder, not a link or a device.",
                where=path,
                remedy=remedy,
            )
    try:
        size_bytes = file_bytes(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataDamagedError("A listed file is missing.", where=path, remedy=remedy) from error
    if num_bytes is not None and (type(num_bytes) is not int or num_bytes != size_bytes):
        raise DataDamagedError(
            f"The file has {size_bytes:,} bytes, but must have {ascii(num_bytes)[:40]}.",
            where=f"{path}, listed in {listed_in}",
            remedy=remedy,
        )
    return path


def files_below(folder: str, *, remedy: str = RESTORE_REMEDY) -> list[str]:
    """Returns the sorted relative paths of the files below a folder.

    Raises DataDamagedError for links and devices.
    """
    files = []
    for name in list_folder(folder):
        path = os.path.join(folder, name)
        mode = stat.S_IFREG if is_remote(path) else os.lstat(path).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise DataDamagedError(
                "This must be a file or a folder, not a link or a device.",
                where=path,
                remedy=remedy,
            )
        if is_folder(path):
            files += [os.path.join(name, below) for below in files_below(path, remedy=remedy)]
        else:
            files.append(name)
    return sorted(files)


def verify_checksums(folder: str, progress: Callable[[int], None] | None = None) -> list[str]:
    """Compares all files below the folder of an export with its `SHA256SUMS`.

    Returns the relative paths of the files. `progress` gets the bytes of each block read. Raises
    DataDamagedError for a file that is missing, altered or not listed, and StorageError.
    """
    where, remedy = os.path.join(folder, CHECKSUMS_FILE), "Export the model again."
    with storage_errors("The export cannot be read", folder, "Check the storage."):
        listed_file(folder, CHECKSUMS_FILE, listed_in=folder, remedy=remedy)
        content = read_file(where, max_bytes=MAX_DESCRIPTION_BYTES)
        *lines, rest = content.decode("utf-8", "replace").split("\n")
        matches = [match for match in map(_CHECKSUM_LINE.fullmatch, lines) if match]
        sums = {match[2]: match[1] for match in matches}
        if rest or len(sums) != len(lines):
            raise DataDamagedError(
                "A line of the checksums is malformed, incomplete, or repeats a file.",
                where=where,
                remedy=remedy,
            )
        names = files_below(folder)
        for name in sorted({*names, *sums} - {CHECKSUMS_FILE}):
            path = listed_file(folder, name, listed_in=where, remedy=remedy)
            if name not in sums:
                raise DataDamagedError(
                    "The file is not listed in SHA256SUMS.", where=path, remedy=remedy
                )
            if (checksum := file_sha256(path, progress)) != sums[name]:
                raise DataDamagedError(
                    f"The file has SHA-256 {checksum}; SHA256SUMS says {sums[name]}.",
                    where=path,
                    remedy=remedy,
                )
    return names
