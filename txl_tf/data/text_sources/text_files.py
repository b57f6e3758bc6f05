"""The files that paths of the user stand for, in a fixed order."""

import glob
import os
from collections.abc import Iterator, Sequence

from txl_tf.errors import InputMissingError, UsageError


def text_files(paths: Sequence[str]) -> list[str]:
    """Lists the files of some paths.

    A folder stands for the files in it and in the folders below it, by name,
    without those whose names begin with a dot. A path with `*`, `?` or `[` that
    does not exist stands for the files and folders that match it, by name.

    Args:
        paths: sequence of str. Files, folders or patterns.

    Returns:
        List of paths of files, in the order of `paths`; the same on every
        machine.

    Raises:
        InputMissingError: If a path has no file.
        UsageError: If a file is named twice.
    """
    files = [file for path in paths for file in _files_of(path)]
    seen: dict[str, str] = {}
    for file in files:
        real = os.path.realpath(file)
        if real in seen:
            raise UsageError(
                "A text file is named twice.",
                where=file if file == seen[real] else f"{seen[real]} and {file}",
                remedy="Name every file once.",
            )
        seen[real] = file
    return files


def _files_of(path: str) -> list[str]:
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        found = sorted(_below(path), key=lambda name: os.fsencode(name).split(os.sep.encode()))
        return _or_missing(found, path, "The folder has no text files.")
    if glob.has_magic(path):
        matches = sorted(glob.glob(path, recursive=True), key=os.fsencode)
        found = [file for match in matches for file in _files_of(match)]
        return _or_missing(found, path, "No text file matches the pattern.")
    return _or_missing([], path, "There is no such text file.")


def _below(folder: str) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = os.path.join(parent, name)
            if not name.startswith(".") and os.path.isfile(path):
                yield path


def _or_missing(found: list[str], path: str, what: str) -> list[str]:
    if not found:
        raise InputMissingError(what, where=path, remedy="Name an existing file or folder.")
    return found
