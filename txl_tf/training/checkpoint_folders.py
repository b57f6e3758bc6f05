"""Checkpoint folders that appear and disappear in one piece."""

import abc
import contextlib
import os
import re
import uuid

from txl_tf.storage.files import path_exists
from txl_tf.storage.writable_folder import WritableFolder
from txl_tf.training.checkpoint_format import ARRAY_FILES, ARRAYS_PREFIX, MANIFEST_FILE

_FOLDER = re.compile(r"step-(\d{8}|[1-9]\d{8,})")
_TEMPORARY = re.compile(r"\.step-.*\.tmp")
_UNFINISHED_FILE = "unfinished"


class CheckpointFolders(abc.ABC):
    """Subfolders `step-NNNNNNNN` of a folder.

    A process that is killed at any moment leaves only whole checkpoints and recognisable
    leftovers. `CheckpointFolders.at` chooses the method by the path.
    """

    def __init__(self, folder: WritableFolder) -> None:
        self.folder = folder

    @staticmethod
    def at(folder: WritableFolder) -> "CheckpointFolders":
        """Returns the checkpoint folders of a local or remote folder."""
        return _RemoteFolders(folder) if folder.is_remote else _LocalFolders(folder)

    def path(self, step: int) -> str:
        """Returns the path of the checkpoint of a step."""
        return os.path.join(self.folder.path, _name(step))

    def steps(self) -> list[int]:
        """Returns the steps of all checkpoints, oldest first."""
        matches = (_FOLDER.fullmatch(name) for name in self.folder.names())
        return sorted(int(match.group(1)) for match in matches if match)

    def remove_leftovers(self) -> list[str]:
        """Removes leftovers of killed processes, and returns their paths."""
        names = [name for name in self.folder.names() if _TEMPORARY.fullmatch(name)]
        for name in names:
            self.folder.remove_folder(name)
        return [os.path.join(self.folder.path, name) for name in names]

    def begin(self, step: int) -> WritableFolder:
        """Creates a folder under a hidden name to write a checkpoint into."""
        return self.folder.make_new(_hidden(step, f"{os.getpid()}-{uuid.uuid4().hex[:8]}"))

    @abc.abstractmethod
    def commit(self, step: int, written: WritableFolder, manifest: bytes) -> None:
        """Turns a folder from `begin` into a checkpoint, durable and in one piece.

        A damaged checkpoint of the same step is replaced.
        """

    @abc.abstractmethod
    def give_up(self, step: int, written: WritableFolder) -> None:
        """Removes a folder from `begin`, if possible."""

    @abc.abstractmethod
    def remove(self, step: int) -> None:
        """Removes a checkpoint; a kill meanwhile leaves it whole or a leftover."""


class _LocalFolders(CheckpointFolders):
    """Checkpoint folders on a local disk, written under a hidden name and renamed."""

    def commit(self, step: int, written: WritableFolder, manifest: bytes) -> None:
        hidden = os.path.basename(written.path)
        written.write_new(MANIFEST_FILE, manifest)
        self.folder.flush_tree(hidden)
        target, replaced = _name(step), _hidden(step, "replaced")
        is_there = target in self.folder.names()
        if is_there:
            # Moving it away is faster than removing it.
            self.folder.rename(target, replaced)
        self.folder.rename(hidden, target)
        self.folder.flush()
        if is_there:
            self.folder.remove_folder(replaced)

    def give_up(self, step: int, written: WritableFolder) -> None:
        # The next save removes leftovers.
        with contextlib.suppress(OSError):
            self.folder.remove_folder(os.path.basename(written.path))

    def remove(self, step: int) -> None:
        removed = _hidden(step, "removed")
        self.folder.rename(_name(step), removed)
        self.folder.remove_folder(removed)


class _RemoteFolders(CheckpointFolders):
    """Checkpoint folders in an object store, which renames file by file.

    The arrays are written under a unique hidden name and renamed. The file `unfinished` comes
    before them and the manifest last. A folder with `unfinished` and no manifest is not a
    checkpoint. Arrays without both files mean a lost manifest: damage that is not cleaned up.
    """

    def steps(self) -> list[int]:
        return [step for step in super().steps() if not self._is_unfinished(step)]

    def remove_leftovers(self) -> list[str]:
        removed = super().remove_leftovers()
        unfinished = [step for step in super().steps() if self._is_unfinished(step)]
        for step in unfinished:
            self._remove_unfinished(step)
        return removed + [self.path(step) for step in unfinished]

    def commit(self, step: int, written: WritableFolder, manifest: bytes) -> None:
        target = self._folder_of(step)
        if target.names():
            self.remove(step)
        target.write(_UNFINISHED_FILE, b"")
        hidden, name = os.path.basename(written.path), _name(step)
        # Not the listing, which may be outdated.
        for file in ARRAY_FILES:
            self.folder.rename(os.path.join(hidden, file), os.path.join(name, file))
        target.write(MANIFEST_FILE, manifest)
        target.remove_file(_UNFINISHED_FILE)
        self.folder.remove_folder(hidden)

    def give_up(self, step: int, written: WritableFolder) -> None:
        # The next save removes leftovers.
        with contextlib.suppress(OSError):
            self.folder.remove_folder(os.path.basename(written.path))
            if self._is_unfinished(step):
                self._remove_unfinished(step)

    def remove(self, step: int) -> None:
        folder = self._folder_of(step)
        folder.write(_UNFINISHED_FILE, b"")
        folder.remove_file(MANIFEST_FILE)
        self._remove_unfinished(step)

    def _folder_of(self, step: int) -> WritableFolder:
        return self.folder.subfolder(_name(step))

    def _is_unfinished(self, step: int) -> bool:
        folder = self._folder_of(step)
        names = folder.names()
        has_arrays = any(name.startswith(ARRAYS_PREFIX) for name in names)
        if MANIFEST_FILE in names or (has_arrays and _UNFINISHED_FILE not in names):
            return False
        # A listing may be outdated; a lookup of the file itself is not.
        return not path_exists(os.path.join(folder.path, MANIFEST_FILE))

    def _remove_unfinished(self, step: int) -> None:
        folder = self._folder_of(step)
        for name in folder.names():
            if name != _UNFINISHED_FILE:  # removed last
                folder.remove_file(name)
        self.folder.remove_folder(_name(step))


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _hidden(step: int, reason: str) -> str:
    return f".{_name(step)}.{reason}.tmp"
