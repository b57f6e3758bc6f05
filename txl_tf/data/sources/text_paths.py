"""Files of text below paths, folders and patterns."""

import glob
import os
from collections.abc import Iterator, Sequence

from txl_tf.errors import InputMissingError, UsageError


def text_files(paths: Sequence[str]) -> list[str]:
    """Lists the files of paths in the order of `paths`, which is the same on every machine.

    A folder stands for all files below it, sorted by name, without hidden ones. A pattern with `*`,
    `?` or `[` stands for its matches. Raises InputMissingError for a path without files, and
    UsageError for a file that is named twice, or for a pipe or device.
    """
    files = [file for path in paths for file in _files_of(path)]
    file_of_path: dict[str, str] = {}
    for file in files:
        real = os.path.realpath(file)
        if real in file_of_path:
            raise UsageError(
                "The same text file is named twice.",
                where=file if file == file_of_path[real] else f"{file_of_path[real]} and {file}",
                remedy="Name every file once.",
            )
        file_of_path[real] = file
    return files


def _files_of(path: str) -> list[str]:
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        files = sorted(_below(path), key=lambda name: os.fsencode(name).split(os.sep.encode()))
        what = "The folder has no text files."
    elif glob.has_magic(path):
        matches = sorted(glob.glob(path, recursive=True), key=os.fsencode)
        files = [file for match in matches for file in _files_of(match)]
        what = "No text file matches the pattern."
    elif os.path.exists(path):
        raise UsageError(
            "The text is a pipe or a device, but must be a file: it is read several times.",
            where=path,
            remedy="Write the text into a file first, and name that file.",
        )
    else:
        files, what = [], "There is no such text file."
    if not files:
        raise input_missing_error(what, path)
    return files


def _below(folder: str) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = os.path.join(parent, name)
            if not name.startswith(".") and os.path.isfile(path):
                yield path


def input_missing_error(what: str, path: str) -> InputMissingError:
    """Creates the error of a path without text files."""
    return InputMissingError(what, where=path, remedy="Name a text file, or a folder of them.")
