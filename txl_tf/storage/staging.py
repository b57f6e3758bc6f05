"""Folder that gets its name only when it is complete."""

import contextlib
import os
import uuid
from collections.abc import Iterable
from typing import Self

from txl_tf.errors import OutputExistsError
from txl_tf.storage.files import (
    flush_to_disk,
    flush_tree_to_disk,
    is_remote,
    list_folder,
    make_folder,
    path_exists,
    remove_file,
    remove_folder,
    rename,
)
from txl_tf.storage.locks import open_locked

_HIDDEN_INFIX = ".preparing-"


class StagingFolder:
    """Hidden folder beside its target, which `publish` renames to the target.

    Entering the `with` block raises OutputExistsError if the target exists or is being written. It
    removes the hidden folders that killed processes left for this target. Leaving the block without
    `publish` removes the hidden folder.

    On a local disk a locked hidden file beside the target excludes other writers. A store has no
    such lock, so a second job for one target removes the files of the first. A store also renames
    file by file, so `last_file`, whose presence marks the folder as complete, is renamed last.
    """

    def __init__(self, target: str, *, last_file: str) -> None:
        self._target = target.rstrip("/")
        self._is_local = not is_remote(target)
        if self._is_local:
            self._target = os.path.abspath(self._target)
        self._parent, self._name = os.path.split(self._target)
        self._last_file = last_file
        self._lock_path = os.path.join(self._parent, f".{self._name}.lock")
        self._lock: int | None = None
        self.path = os.path.join(
            self._parent, f".{self._name}{_HIDDEN_INFIX}{uuid.uuid4().hex[:12]}"
        )

    def __enter__(self) -> Self:
        require_absent(self._target)
        make_folder(self._parent)
        if self._is_local:
            try:
                self._lock = open_locked(self._lock_path)
            except BlockingIOError as error:
                raise OutputExistsError(
                    "Another process is writing this output.",
                    where=self._target,
                    remedy="Wait for it to end, or name another folder.",
                ) from error
        for name in list_folder(self._parent):
            if name.startswith(f".{self._name}{_HIDDEN_INFIX}"):
                remove_folder(os.path.join(self._parent, name))
        make_folder(self.path)
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(OSError):
            remove_folder(self.path)
        if self._lock is not None:
            # The file is removed while it is locked, which `open_locked` expects.
            with contextlib.suppress(OSError):
                remove_file(self._lock_path)
            os.close(self._lock)
            self._lock = None

    def publish(self, files: Iterable[str] | None = None) -> None:
        """Flushes the folder to the disk, and renames it to its target.

        Args:
            files: optional iterable of str. Names of all files of a remote folder, because the
                listing of a store may be outdated. Defaults to the listing.

        Raises:
            OutputExistsError: If the target exists meanwhile.
        """
        require_absent(self._target)
        if not self._is_local:
            names = list_folder(self.path) if files is None else files
            make_folder(self._target)
            for name in sorted(names, key=lambda name: name == self._last_file):
                rename(os.path.join(self.path, name), os.path.join(self._target, name))
            return
        flush_tree_to_disk(self.path)
        rename(self.path, self._target)
        flush_to_disk(self._parent)


def require_absent(path: str) -> None:
    """Raises OutputExistsError if an output exists already."""
    if path_exists(path):
        raise OutputExistsError(
            "The output exists already.",
            where=path,
            remedy="Give another name, or remove the output.",
        )
