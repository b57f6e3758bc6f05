"""Folder for writing, on a local disk or in a store."""

import os
import re
from collections.abc import Callable

from txl_tf.storage.files import (
    flush_to_disk,
    flush_tree_to_disk,
    is_remote,
    list_folder,
    make_folder,
    no_check,
    remove_file,
    remove_folder,
    rename,
    write_file,
)

# Temporary files of heartbeats begin with two dots.
_TEMPORARY = re.compile(r"\.[^.].*\.tmp")


class WritableFolder:
    """Folder, existing or not, whose files are changed only if the writer may.

    `check` is called before every change. It raises an error if this process may no longer write
    here, see `locked_folder`.
    """

    def __init__(self, path: str | os.PathLike[str], check: Callable[[], None] = no_check) -> None:
        self.path = os.fspath(path)
        self.check = check
        self.is_remote = is_remote(self.path)

    @staticmethod
    def at(path: "str | os.PathLike[str] | WritableFolder") -> "WritableFolder":
        """Returns the folder of a path; returns a `WritableFolder` unchanged."""
        return path if isinstance(path, WritableFolder) else WritableFolder(path)

    def subfolder(self, *names: str) -> "WritableFolder":
        """Returns a folder below this one, without creating it."""
        return WritableFolder(os.path.join(self.path, *names), self.check)

    def names(self) -> list[str]:
        """Returns the sorted names in it; empty if it does not exist."""
        return list_folder(self.path)

    def make(self) -> None:
        """Creates the folder and its parents, if missing."""
        self.check()
        make_folder(self.path)

    def write(self, name: str, content: bytes) -> None:
        """Writes a small file, as `write_file` does; creates its folder if it is missing.

        `name` may be a path below this folder.
        """
        self.check()
        make_folder(os.path.dirname(self._path(name)))
        write_file(self._path(name), content, self.check)

    def remove_file(self, name: str) -> None:
        """Removes a file, if it exists."""
        self.check()
        remove_file(self._path(name))

    def remove_folder(self, name: str) -> None:
        """Removes a folder with its contents, if it exists."""
        self.check()
        remove_folder(self._path(name))

    def rename(self, name: str, new_name: str) -> None:
        """Renames a file, or a local folder, durably."""
        self.check()
        rename(self._path(name), self._path(new_name))
        flush_to_disk(self.path)

    def flush_tree(self, name: str) -> None:
        """Forces a folder below it, with all its contents, to a local disk."""
        if not self.is_remote:
            flush_tree_to_disk(self._path(name))

    def remove_temporaries(self) -> list[str]:
        """Removes unfinished files of killed processes, and returns their paths."""
        names = [name for name in self.names() if _TEMPORARY.fullmatch(name)]
        for name in names:
            self.remove_file(name)
        return [self._path(name) for name in names]

    def _path(self, name: str) -> str:
        return os.path.join(self.path, name)
