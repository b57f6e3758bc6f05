"""How the folder of a checkpoint comes to be, and goes, in one piece."""

import abc
import contextlib
import os
import re
import shutil

from txl_tf.durability import flush_to_disk, flush_tree_to_disk
from txl_tf.file_storage import (
    is_remote,
    list_folder,
    make_folder,
    remove_file,
    remove_folder,
    write_file,
)
from txl_tf.training.checkpoint_manifest import ARRAYS_PREFIX, MANIFEST_FILE

_FOLDER = re.compile(r"step-(\d{8}|[1-9]\d{8,})")
_TEMPORARY = re.compile(r"\.step-.*\.tmp")
_UNFINISHED_FILE = "unfinished"


class CheckpointFolders(abc.ABC):
    """The subfolders `step-NNNNNNNN` of a folder.

    A process that is killed at any moment leaves checkpoints that are whole,
    and leftovers that can be told from them. `CheckpointFolders.at` chooses
    how, by the path.

    Args:
        folder: str. Path of the folder.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @staticmethod
    def at(folder: str) -> "CheckpointFolders":
        """The subfolders of a local or remote folder."""
        return _RemoteFolders(folder) if is_remote(folder) else _LocalFolders(folder)

    def path(self, step: int) -> str:
        """Path of the checkpoint of a step."""
        return os.path.join(self.folder, f"step-{step:08d}")

    def steps(self) -> list[int]:
        """The steps of all checkpoints, oldest first."""
        matches = (_FOLDER.fullmatch(name) for name in list_folder(self.folder))
        return sorted(int(match.group(1)) for match in matches if match)

    @abc.abstractmethod
    def remove_leftovers(self) -> list[str]:
        """Removes what killed processes left, and returns the paths."""

    @abc.abstractmethod
    def begin(self, step: int) -> str:
        """Makes a folder to write a checkpoint into; only a damaged one is replaced."""

    @abc.abstractmethod
    def commit(self, step: int, written: str, manifest: bytes) -> None:
        """Makes a checkpoint of a folder that `begin` made, durable and in one piece."""

    @abc.abstractmethod
    def give_up(self, written: str) -> None:
        """Removes a folder that `begin` made, if that can be done."""

    @abc.abstractmethod
    def remove(self, step: int) -> None:
        """Removes a checkpoint; a kill meanwhile leaves it whole or a leftover."""


class _LocalFolders(CheckpointFolders):
    """Folders are written under a hidden name and renamed."""

    def remove_leftovers(self) -> list[str]:
        names = [name for name in list_folder(self.folder) if _TEMPORARY.fullmatch(name)]
        paths = [os.path.join(self.folder, name) for name in names]
        for path in paths:
            remove_folder(path)
        return paths

    def begin(self, step: int) -> str:
        written = self._hidden(step, str(os.getpid()))
        make_folder(self.folder)
        os.mkdir(written)
        return written

    def commit(self, step: int, written: str, manifest: bytes) -> None:
        with open(os.path.join(written, MANIFEST_FILE), "wb") as file:
            file.write(manifest)
        flush_tree_to_disk(written)
        target, replaced = self.path(step), self._hidden(step, "replaced")
        is_there = os.path.exists(target)
        if is_there:
            # Removing it takes time, moving it away does not.
            os.rename(target, replaced)
        os.rename(written, target)
        flush_to_disk(self.folder)
        if is_there:
            remove_folder(replaced)

    def give_up(self, written: str) -> None:
        shutil.rmtree(written, ignore_errors=True)

    def remove(self, step: int) -> None:
        removed = self._hidden(step, "removed")
        os.rename(self.path(step), removed)
        remove_folder(removed)

    def _hidden(self, step: int, reason: str) -> str:
        return os.path.join(self.folder, f".step-{step:08d}.{reason}.tmp")


class _RemoteFolders(CheckpointFolders):
    """Object stores rename file by file, so that a folder says itself what it is.

    A file `unfinished` is written first and the manifest last. A folder with
    the first and without the second is not a checkpoint. One with arrays and
    neither of them has lost its manifest: that is damage, and not cleaned up.
    """

    def steps(self) -> list[int]:
        return [step for step in super().steps() if not self._is_unfinished(step)]

    def remove_leftovers(self) -> list[str]:
        paths = [self.path(step) for step in super().steps() if self._is_unfinished(step)]
        for path in paths:
            self._remove_unfinished(path)
        return paths

    def begin(self, step: int) -> str:
        written = self.path(step)
        if list_folder(written):
            self.remove(step)
        make_folder(written)
        write_file(os.path.join(written, _UNFINISHED_FILE), b"")
        return written

    def commit(self, step: int, written: str, manifest: bytes) -> None:
        write_file(os.path.join(written, MANIFEST_FILE), manifest)
        remove_file(os.path.join(written, _UNFINISHED_FILE))

    def give_up(self, written: str) -> None:
        # What cannot be removed now, the next save removes.
        with contextlib.suppress(OSError):
            if MANIFEST_FILE not in list_folder(written):
                self._remove_unfinished(written)

    def remove(self, step: int) -> None:
        folder = self.path(step)
        write_file(os.path.join(folder, _UNFINISHED_FILE), b"")
        remove_file(os.path.join(folder, MANIFEST_FILE))
        self._remove_unfinished(folder)

    def _is_unfinished(self, step: int) -> bool:
        names = list_folder(self.path(step))
        has_arrays = any(name.startswith(ARRAYS_PREFIX) for name in names)
        return MANIFEST_FILE not in names and (_UNFINISHED_FILE in names or not has_arrays)

    def _remove_unfinished(self, folder: str) -> None:
        for name in list_folder(folder):
            if name != _UNFINISHED_FILE:  # it is the last to go
                remove_file(os.path.join(folder, name))
        remove_folder(folder)
