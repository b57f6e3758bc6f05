"""Folder whose writer proves its right before each change, on a local disk or in a store."""

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

# Names of the temporary files of `write_file`. Names for a lock and its heartbeats begin with two
# dots and do not match, because another process may be writing them.
_TEMPORARY = re.compile(r"\.[^.].*\.tmp")


class WritableFolder:
    """Folder whose files are changed only while the writer has the right to change them.

    `check` is called before every change, and raises an error if this process may no longer write
    here; see `locked_folder`. The folder need not exist yet.
    """

    def __init__(self, path: str | os.PathLike[str], check: Callable[[], None] = no_check) -> None:
        self.path = os.fspath(path)
        self.check = check
        self.is_remote = is_remote(self.path)

    @staticmethod
    def at(path: "str | os.PathLike[str] | WritableFolder") -> "WritableFolder":
        """Makes a folder of a path; returns a `WritableFolder` unchanged."""
        return path if isinstance(path, WritableFolder) else WritableFolder(path)

    def subfolder(self, *names: str) -> "WritableFolder":
        """Returns a folder below this one with the same check; does not create it."""
        return WritableFolder(os.path.join(self.path, *names), self.check)

    def names(self) -> list[str]:
        """Returns the sorted names in the folder; an empty list if the folder does not exist."""
        return list_folder(self.path)

    def make(self) -> None:
        """Creates the folder and its parents if they are missing."""
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
        """Removes a file if it exists."""
        self.check()
        remove_file(self._path(name))

    def remove_folder(self, name: str) -> None:
        """Removes a folder and its contents if it exists."""
        self.check()
        remove_folder(self._path(name))

    def rename(self, name: str, new_name: str) -> None:
        """Renames a file or a local folder, and flushes the new name to a local disk."""
        self.check()
        rename(self._path(name), self._path(new_name))
        flush_to_disk(self.path)

    def flush_tree(self, name: str) -> None:
        """Forces a folder below this one, and everything in it, to a local disk."""
        if not self.is_remote:
            flush_tree_to_disk(self._path(name))

    def remove_temporaries(self) -> list[str]:
        """Removes the temporary files that killed processes left, and returns their paths."""
        names = [name for name in self.names() if _TEMPORARY.fullmatch(name)]
        for name in names:
            self.remove_file(name)
        return [self._path(name) for name in names]

    def _path(self, name: str) -> str:
        return os.path.join(self.path, name)
