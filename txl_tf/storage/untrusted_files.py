"""Files from strangers, read with limits: JSON, lists of files, checksums."""

import collections
import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Callable
from typing import Any

from txl_tf.errors import DataDamagedError, first_line, storage_errors
from txl_tf.storage.files import (
    file_bytes,
    file_sha256,
    is_folder,
    is_remote,
    list_folder,
    read_file,
)

MAX_DEPTH = 32
_LARGEST_INTEGER = 2**64 - 1
_SMALLEST_INTEGER = -(2**63)
_TOO_DEEP = "Lists and objects are nested too deep."


def parse_json(
    content: bytes | str, *, max_depth: int = MAX_DEPTH, max_values: int | None = None
) -> Any:
    """Parses JSON strictly: the text must be exactly one well-formed value.

    Raises ValueError also for bytes that are not UTF-8, a key that occurs twice in one object, NaN
    and infinities, numbers that neither 64-bit integers nor float64 can hold, lone surrogates, and
    deep nesting. `max_values` limits commas, brackets and braces, and so the memory of the values.
    """
    text = content if isinstance(content, str) else content.decode("utf-8")
    if max_values is not None and sum(map(text.count, ",[{")) > max_values:
        raise ValueError(f"There must be at most {max_values:,} values.")
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    check_values(value, max_depth=max_depth)
    return value


def check_values(value: Any, *, max_depth: int = MAX_DEPTH) -> None:
    """Raises ValueError for nesting, numbers and strings that the program cannot hold."""
    if isinstance(value, dict | list):
        if max_depth == 0:
            raise ValueError(_TOO_DEEP)
        for each in [*value, *value.values()] if isinstance(value, dict) else value:
            check_values(each, max_depth=max_depth - 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"A number must be at most about 1.8e308, in float64. Received: {value}")
    elif isinstance(value, int) and not _SMALLEST_INTEGER <= value <= _LARGEST_INTEGER:
        bits = value.bit_length()
        raise ValueError(f"An integer must fit into 64 bits. Received: {bits} bits")
    elif isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            what = "A string must have no lone surrogate."
            raise ValueError(f"{what} Received: {value[:60]!a}") from error


def json_sha256(values: Any) -> str:
    """Returns the SHA-256 of JSON values, whatever the order of their keys."""
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        (key, _), *_ = collections.Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"An object must not have a key twice. Received: {key[:60]!r} twice")
    return values


def _refuse_constant(name: str) -> float:
    raise ValueError(f"A number must be finite. Received: {name}")


# The largest description so far, of a data set of 100,000 shards, has 20 MB.
MAX_DESCRIPTION_BYTES = 64 << 20
MAX_VALUES = 4 << 20
_RESTORE = "Restore the file from a copy."
CHECKSUMS_FILE = "SHA256SUMS"
"""SHA-256 of all files of a folder, in the format of `sha256sum`."""
_CHECKSUM_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")
_NO_NAME = re.compile(r"[\x00-\x1f\x7f\\]|://")


def read_json_object(
    path: str, *, remedy: str = _RESTORE, max_bytes: int = MAX_DESCRIPTION_BYTES
) -> dict[str, Any]:
    """Reads a file that holds one JSON object; DataDamagedError if it holds anything else."""
    return parse_json_object(read_file(path, max_bytes=max_bytes), where=path, remedy=remedy)


def parse_json_object(
    content: bytes | str, *, where: str, remedy: str = _RESTORE
) -> dict[str, Any]:
    """Parses the file `where` that holds one JSON object; DataDamagedError for anything else."""
    try:
        values = parse_json(content, max_values=MAX_VALUES)
    except ValueError as error:
        raise DataDamagedError(
            f"The JSON is not valid: {first_line(error)}", where=where, remedy=remedy
        ) from error
    if not isinstance(values, dict):
        raise DataDamagedError(
            f"The JSON must be an object, not of type {type(values).__name__}.",
            where=where,
            remedy=remedy,
        )
    return values


def listed_file(
    folder: str, name: Any, *, listed_in: str, remedy: str = _RESTORE, num_bytes: Any = None
) -> str:
    """Returns the path of a file that a manifest or a list of checksums names.

    Raises DataDamagedError unless it is a regular file inside the folder, of `num_bytes` if given:
    a device or a pipe would never end, and a link could lead anywhere.
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


def files_below(folder: str, *, remedy: str = _RESTORE) -> list[str]:
    """Returns the sorted relative paths of files below a folder; DataDamagedError for a link."""
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
    """Compares all files below a folder with its `SHA256SUMS`, and returns their names."""
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
