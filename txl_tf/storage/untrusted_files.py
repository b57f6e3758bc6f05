"""Checked reading of JSON manifests and of the files that they name."""

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from typing import Any

from txl_tf.errors import DataDamagedError, StorageError
from txl_tf.storage.files import (
    file_bytes,
    first_line,
    is_folder,
    is_remote,
    list_folder,
    path_exists,
    read_file,
)
from txl_tf.storage.json_text import parse_json

# The largest description so far, of a data set of 100,000 shards, has 20 MB.
MAX_DESCRIPTION_BYTES = 64 << 20
MAX_VALUES = 4 << 20
_RESTORE = "Restore it from a copy."
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@contextlib.contextmanager
def storage_errors(
    what: str, where: str, remedy: str = "Check the storage and the permissions."
) -> Iterator[None]:
    """Turns an OSError of the block into a StorageError.

    Args:
        what: str. What failed; the error's own words follow it.
        where: str. The file or folder.
        remedy: str. What the user can do about it.
    """
    try:
        yield
    except OSError as error:
        raise StorageError(f"{what}: {first_line(error)}", where=where, remedy=remedy) from error


def read_json_object(
    path: str, *, remedy: str = _RESTORE, max_bytes: int = MAX_DESCRIPTION_BYTES
) -> dict[str, Any]:
    """Reads a file that holds one JSON object.

    Args:
        path: str. The file, also a remote one.
        remedy: str. What to do where it is damaged.
        max_bytes: int. A longer file is refused before it is read.

    Returns:
        The object, checked by `parse_json`.

    Raises:
        DataDamagedError: If it is no regular file, too long, or not one object.
        OSError: If it cannot be read; FileNotFoundError if it is not there.
    """
    content = read_file(path, max_bytes=max_bytes)
    try:
        values = parse_json(content, max_values=MAX_VALUES)
    except ValueError as error:
        what = f"The file is not JSON: {first_line(error)}"
        raise DataDamagedError(what, where=path, remedy=remedy) from error
    if not isinstance(values, dict):
        what = f"The file must hold a JSON object. Received: {type(values).__name__}"
        raise DataDamagedError(what, where=path, remedy=remedy)
    return values


def listed_file(
    folder: str, name: Any, *, listed_in: str, remedy: str = _RESTORE, num_bytes: Any = None
) -> str:
    """Returns the path of a file that a manifest or a list of checksums names.

    Nothing is opened that is not a regular file inside the folder: a device or
    a pipe would never end, and a link could lead anywhere.

    Args:
        folder: str. The folder of the list, also a remote one.
        name: the name as it stands in the list, relative to the folder.
        listed_in: str. The list and, where there is one, the field; for errors.
        remedy: str. What to do where it is damaged.
        num_bytes: optional. The size that the list gives.

    Returns:
        Path of the file.

    Raises:
        DataDamagedError: If the name leaves the folder, or there is no regular
            file of this name and size.
        OSError: If the storage does not answer.
    """
    if not isinstance(name, str) or not _stays_inside(name):
        what = f"A listed name must be a path inside the folder. Received: {ascii(name)[:200]}"
        raise DataDamagedError(what, where=listed_in, remedy=remedy)
    path = os.path.join(folder, name)
    found = _regular_bytes(folder, name, remedy)
    if num_bytes is not None and (type(num_bytes) is not int or num_bytes != found):
        what = f"The file has {found:,} bytes; {ascii(num_bytes)[:40]} are listed."
        raise DataDamagedError(what, where=f"{path}, listed in {listed_in}", remedy=remedy)
    return path


def files_below(folder: str, *, remedy: str = _RESTORE) -> list[str]:
    """Returns the files in a folder and in all folders below it.

    Args:
        folder: str. Path of the folder, also a remote one.
        remedy: str. What to do where something else is there.

    Returns:
        Sorted paths relative to the folder; none where there is no such folder.

    Raises:
        DataDamagedError: If a link, a device, a pipe or a socket is below it: a
            link could lead anywhere, also back to where it is.
        OSError: If a folder cannot be listed.
    """
    found = []
    for name in list_folder(folder):
        path = os.path.join(folder, name)
        if _is_plain_folder(path, remedy):
            found += [os.path.join(name, below) for below in files_below(path, remedy=remedy)]
        else:
            found.append(name)
    return sorted(found)


def _is_plain_folder(path: str, remedy: str) -> bool:
    if is_remote(path):
        return is_folder(path)
    mode = os.lstat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        what = "Only files and folders may be here; this is a link or no file."
        raise DataDamagedError(what, where=path, remedy=remedy)
    return stat.S_ISDIR(mode)


def _stays_inside(name: str) -> bool:
    parts = name.split("/")
    return (
        not _CONTROL.search(name)
        and "\\" not in name
        and "://" not in name
        and not {"", ".", ".."}.intersection(parts)
    )


def _regular_bytes(folder: str, name: str, remedy: str) -> int:
    path = os.path.join(folder, name)
    try:
        if is_remote(folder):
            if not path_exists(path):
                raise FileNotFoundError
            return file_bytes(path)
        parts = name.split("/")
        for depth in range(1, len(parts) + 1):
            below = os.path.join(folder, *parts[:depth])
            status = os.lstat(below)
            expected = stat.S_ISREG if depth == len(parts) else stat.S_ISDIR
            if not expected(status.st_mode):
                what = "A listed file must be a regular file inside the folder."
                raise DataDamagedError(what, where=below, remedy=remedy)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataDamagedError("A listed file is missing.", where=path, remedy=remedy) from error
    return status.st_size
