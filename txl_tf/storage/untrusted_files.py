"""Strict reading of JSON, of manifests and of the files that they name."""

import collections
import contextlib
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterator
from typing import Any

from txl_tf.errors import DataDamagedError, StorageError
from txl_tf.storage.files import (
    file_bytes,
    file_sha256,
    first_line,
    is_folder,
    is_remote,
    list_folder,
    path_exists,
    read_file,
)
from txl_tf.storage.store_client import is_store_failure

MAX_DEPTH = 32
_LARGEST_INTEGER = 2**64 - 1
_SMALLEST_INTEGER = -(2**63)


def parse_json(
    content: bytes | str, *, max_depth: int = MAX_DEPTH, max_values: int | None = None
) -> Any:
    """Parses JSON strictly: the text must be exactly one well-formed value.

    Raises ValueError also for bytes that are not UTF-8, a key that occurs twice in one object, NaN
    and infinities, numbers that neither 64-bit integers nor float64 can hold, lone surrogates, and
    deep nesting. `max_values` limits commas, brackets and braces: an empty list takes 2 bytes of
    text and 64 of memory.
    """
    text = content if isinstance(content, str) else content.decode("utf-8")
    if max_values is not None and sum(map(text.count, ",[{")) > max_values:
        raise ValueError(f"There must be at most {max_values:,} values.")
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise _too_deep(max_depth) from error
    check_values(value, max_depth=max_depth)
    return value


def check_values(value: Any, *, max_depth: int = MAX_DEPTH) -> None:
    """Raises ValueError for nesting, numbers and strings that the program cannot hold.

    It serves every format that is parsed to plain lists, dicts, numbers and strings, such as TOML.
    """
    level, depth = [value], 0
    while level:
        below: list[Any] = []
        for each in level:
            kind = type(each)
            if kind is dict:
                below += each
                below += each.values()
            elif kind is list:
                below += each
            else:
                _check_scalar(each)
        depth += any(type(each) in (dict, list) for each in level)
        if depth > max_depth:
            raise _too_deep(max_depth)
        level = below


def _check_scalar(value: Any) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"A number must fit float64. Received: {value}")
    elif isinstance(value, int):
        if not _SMALLEST_INTEGER <= value <= _LARGEST_INTEGER:
            raise ValueError(
                f"An integer must fit 64 bits. Received: one of {value.bit_length()} bits"
            )
    elif isinstance(value, str):
        # Only a lone surrogate cannot be encoded.
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"A string must have no lone surrogate. Received: {value[:60]!a}"
            ) from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        (key, _), *_ = collections.Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"A key must stand once in an object. Received: {key[:60]!r}")
    return values


def _refuse_constant(name: str) -> float:
    raise ValueError(f"A number must be finite. Received: {name}")


def _too_deep(max_depth: int) -> ValueError:
    return ValueError(f"Lists and objects must be nested at most {max_depth} deep.")


# The largest description so far, of a data set of 100,000 shards, has 20 MB.
MAX_DESCRIPTION_BYTES = 64 << 20
MAX_VALUES = 4 << 20
_RESTORE = "Restore it from a copy."
CHECKSUMS_FILE = "SHA256SUMS"
"""SHA-256 of all files of a folder, in the format of `sha256sum`."""
_CHECKSUM_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@contextlib.contextmanager
def storage_errors(
    what: str, where: str, remedy: str = "Check the storage and the permissions."
) -> Iterator[None]:
    """Turns an OSError of the block into a StorageError, whose text begins with `what`."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{what}: {first_line(error)}", where=where, remedy=remedy) from error


def read_json_object(
    path: str, *, remedy: str = _RESTORE, max_bytes: int = MAX_DESCRIPTION_BYTES
) -> dict[str, Any]:
    """Reads a file that holds one JSON object.

    Raises DataDamagedError if it is not a regular file, too long, or not one object.
    """
    return parse_json_object(read_file(path, max_bytes=max_bytes), where=path, remedy=remedy)


def parse_json_object(
    content: bytes | str, *, where: str, remedy: str = _RESTORE
) -> dict[str, Any]:
    """Parses the content of the file `where` that holds one JSON object.

    Raises DataDamagedError if it is not one object that `parse_json` accepts.
    """
    try:
        values = parse_json(content, max_values=MAX_VALUES)
    except ValueError as error:
        what = f"The file is not JSON: {first_line(error)}"
        raise DataDamagedError(what, where=where, remedy=remedy) from error
    if not isinstance(values, dict):
        what = f"The file is not a JSON object, but of type {type(values).__name__}."
        raise DataDamagedError(what, where=where, remedy=remedy)
    return values


def listed_file(
    folder: str, name: Any, *, listed_in: str, remedy: str = _RESTORE, num_bytes: Any = None
) -> str:
    """Returns the path of a file that a manifest or a list of checksums names.

    Raises DataDamagedError unless it is a regular file inside the folder, of `num_bytes` if given:
    a device or a pipe would never end, and a link could lead anywhere.
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
    """Returns the sorted relative paths of all files below a folder; empty if it does not exist.

    Raises DataDamagedError for a link, a device, a pipe or a socket: a link could lead anywhere,
    even back to its own folder.
    """
    found = []
    for name in list_folder(folder):
        path = os.path.join(folder, name)
        if _is_plain_folder(path, remedy):
            found += [os.path.join(name, below) for below in files_below(path, remedy=remedy)]
        else:
            found.append(name)
    return sorted(found)


def verify_checksums(folder: str, progress: Callable[[int], None] | None = None) -> list[str]:
    """Compares all files below a folder with its `SHA256SUMS`, and returns their names.

    Raises DataDamagedError for a missing, extra or changed file, and StorageError. `progress` gets
    the bytes read since the last call.
    """
    where, remedy = os.path.join(folder, CHECKSUMS_FILE), "Export the model again."
    with storage_errors("The export cannot be read", folder, "Check the storage."):
        listed_file(folder, CHECKSUMS_FILE, listed_in=folder, remedy=remedy)
        content = read_file(where, max_bytes=MAX_DESCRIPTION_BYTES)
        *lines, rest = content.decode("utf-8", "replace").split("\n")
        matches = [match for match in map(_CHECKSUM_LINE.fullmatch, lines) if match]
        sums = {match[2]: match[1] for match in matches}
        if rest or len(sums) != len(lines):
            what = "A line of the checksums is malformed or names a file again."
            raise DataDamagedError(what, where=where, remedy=remedy)
        names = files_below(folder)
        for name in sorted({*names, *sums} - {CHECKSUMS_FILE}):
            path = listed_file(folder, name, listed_in=where, remedy=remedy)
            if name not in sums:
                what = "A file is not in the list of checksums."
                raise DataDamagedError(what, where=path, remedy=remedy)
            if (found := file_sha256(path, progress)) != sums[name]:
                what = f"The file has SHA-256 {found}; the list says {sums[name]}."
                raise DataDamagedError(what, where=path, remedy=remedy)
    return names


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


def reading_failed(error: Exception, prefix: str, remedy: str) -> DataDamagedError | StorageError:
    """Tells a store that does not answer from damaged files, by an error of TensorFlow's reader.

    `prefix` is the beginning of the paths of the files.
    """
    import tensorflow as tf

    out_of_reach_errors = (
        tf.errors.UnavailableError,
        tf.errors.DeadlineExceededError,
        tf.errors.AbortedError,
        tf.errors.PermissionDeniedError,
        tf.errors.UnauthenticatedError,
    )
    data = f"{prefix}.data-00000-of-00001"
    what = f"the arrays cannot be read: {first_line(error)}"
    out_of_reach = StorageError(what, where=data, remedy="Start again when the storage answers.")
    if isinstance(error, out_of_reach_errors) or is_store_failure(error):
        return out_of_reach
    damage = DataDamagedError(what, where=data, remedy=remedy)
    try:
        # The reader looks for the files by a pattern, and finds no file if the store fails.
        for path in (f"{prefix}.index", data):
            file_bytes(path)
    except FileNotFoundError:
        return damage
    except OSError:
        return out_of_reach
    return out_of_reach if "Failed to find any matching files" in str(error) else damage
