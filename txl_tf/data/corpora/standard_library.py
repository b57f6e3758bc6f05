"""Source code of the Python standard library: real text that every machine has."""

import hashlib
import os
import sysconfig
from collections.abc import Iterable, Iterator

from txl_tf.data.text import Reread
from txl_tf.errors import InputMissingError
from txl_tf.storage.untrusted_files import storage_errors

_EXCLUDED_FOLDERS = frozenset(
    {
        "site-packages",
        "dist-packages",
        "test",
        "tests",
        "idle_test",
        "__pycache__",
    }
)
_VALID_FROM = 0.90
_TEST_FROM = 0.95


def python_standard_library_splits(folder: str | None = None) -> dict[str, Iterable[bytes]]:
    """Returns the Python files of the standard library as three splits.

    A document is one file after a line `# file: <relative path>`. The SHA-256 of the relative path
    determines the split, so a file is in the same split on every machine: 90 % train, 5 % valid, 5
    % test. Tests, installed packages and empty files are omitted.

    Args:
        folder: optional str. Folder of the library. Defaults to the library of the running Python.

    Returns:
        Dict of split name to documents, in the order of that SHA-256, so that similar files of one
        folder are spread over the text.

    Raises:
        InputMissingError: If no Python files are found.
    """
    folder = folder or sysconfig.get_path("stdlib")
    paths: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for path in _relative_paths(folder):
        paths[_split_of(path)].append(path)
    if not all(paths.values()):
        raise InputMissingError(
            "The source of the Python standard library is not installed.",
            where=folder,
            remedy="Use a Python with its library's source, or a text file instead.",
        )
    return {name: Reread(_documents, folder, names) for name, names in paths.items()}


def _documents(folder: str, relative_paths: list[str]) -> Iterator[bytes]:
    """Yields the files of a split, reading one at a time."""
    for relative_path in relative_paths:
        path = os.path.join(folder, *relative_path.split("/"))
        problem = "A file of the standard library cannot be read"
        with storage_errors(problem, path), open(path, "rb") as file:
            content = file.read()
        # The header of the next document must begin a line.
        end = b"" if content.endswith(b"\n") else b"\n"
        yield b"# file: " + relative_path.encode() + b"\n" + content + end


def _relative_paths(folder: str) -> list[str]:
    found = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _EXCLUDED_FOLDERS]
        for name in files:
            path = os.path.join(parent, name)
            if name.endswith(".py") and os.path.isfile(path) and os.path.getsize(path):
                found.append(os.path.relpath(path, folder).replace(os.sep, "/"))
    return sorted(found, key=_digest)


def _digest(relative_path: str) -> bytes:
    return hashlib.sha256(relative_path.encode()).digest()


def _split_of(relative_path: str) -> str:
    place = int.from_bytes(_digest(relative_path)[:4], "big") / 2**32
    if place < _VALID_FROM:
        return "train"
    return "valid" if place < _TEST_FROM else "test"
