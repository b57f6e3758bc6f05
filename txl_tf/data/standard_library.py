"""Text of the Python standard library, in splits."""

import hashlib
import os
import sysconfig
from collections.abc import Iterable, Iterator

from txl_tf.data.corpora import SPLITS
from txl_tf.data.text import Reread
from txl_tf.errors import InputMissingError, storage_errors

_EXCLUDED_FOLDERS = frozenset(
    ("site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__")
)


def python_standard_library_splits(folder: str | None = None) -> dict[str, Iterable[bytes]]:
    """Returns the Python files of the standard library as three splits.

    A document is a line `# file: <relative path>` and the content of this file. The SHA-256 of the
    relative path determines the split, so a file is in the same split on every machine. About 90 %
    of the files are in train, 5 % in valid and 5 % in test. Tests, installed packages and empty
    files are omitted.

    Args:
        folder: optional str. Folder of the library. Defaults to the library of the running Python.

    Returns:
        Dict of split name to documents in the order of these SHA-256, so that similar files of one
        folder are spread over the text.

    Raises:
        InputMissingError: If a split has no file.
    """
    folder = folder or sysconfig.get_path("stdlib")
    paths: dict[str, list[str]] = {name: [] for name in SPLITS}
    for digest, path in sorted(_hashed_paths(folder)):
        place = int.from_bytes(digest[:4], "big") / 2**32
        paths[SPLITS[(place >= 0.90) + (place >= 0.95)]].append(path)
    if not all(paths.values()):
        raise InputMissingError(
            "The folder has too few source files of the Python standard library.",
            where=folder,
            remedy="Use a Python that has the source of its library, or use a text file.",
        )
    return {name: Reread(_headed_files, folder, names) for name, names in paths.items()}


def _hashed_paths(folder: str) -> Iterator[tuple[bytes, str]]:
    """Yields the SHA-256 of the relative path of each Python file, and that path."""
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _EXCLUDED_FOLDERS]
        for name in files:
            path = os.path.join(parent, name)
            if name.endswith(".py") and os.path.isfile(path) and os.path.getsize(path):
                relative = os.path.relpath(path, folder).replace(os.sep, "/")
                yield hashlib.sha256(relative.encode()).digest(), relative


def _headed_files(folder: str, relative_paths: list[str]) -> Iterator[bytes]:
    """Yields the documents of a split, and reads one file at a time."""
    for relative_path in relative_paths:
        path = os.path.join(folder, *relative_path.split("/"))
        with (
            storage_errors("A file of the standard library cannot be read", path),
            open(path, "rb") as file,
        ):
            content = file.read()
        # The header of the next document must be at the beginning of a line.
        end = b"" if content.endswith(b"\n") else b"\n"
        yield b"# file: " + relative_path.encode() + b"\n" + content + end
