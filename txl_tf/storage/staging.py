"""Folder that appears under its name only when it is complete."""

import contextlib
import os
import random
import shutil
import time
import uuid
from collections.abc import Iterable
from typing import Self

from txl_tf.errors import OutputExistsError
from txl_tf.storage.files import (
    flush_to_disk,
    is_remote,
    list_folder,
    lock,
    make_folder,
    path_exists,
    remove_folder,
    rename_remote_file,
)

_MARK = ".preparing-"
_LOCKING = ".locking"
_NUM_TRIES = 20
_LONGEST_PAUSE_SECONDS = 0.05


class StagingFolder:
    """Hidden folder beside its target, renamed to it at the end.

    Leaving the `with` block without `publish` removes it. Entering removes the hidden folders that
    killed processes left for this target, and raises OutputExistsError if the target exists or is
    being written. A local process locks its folder; an object store has no locks, so a second job
    for one target removes the files of the first. Stores rename file by file, and `last_file`,
    which marks the folder as complete, last.
    """

    def __init__(self, target: str, *, last_file: str) -> None:
        self._target = target.rstrip("/")
        self._is_local = not is_remote(target)
        if self._is_local:
            self._target = os.path.abspath(self._target)
        self._parent, self._name = os.path.split(self._target)
        self._last_file = last_file
        self._lock: int | None = None
        self.path = os.path.join(self._parent, f".{self._name}{_MARK}{uuid.uuid4().hex[:12]}")

    def __enter__(self) -> Self:
        require_absent(self._target)
        if not self._is_local:
            make_folder(self._parent)
            for path in self._stale_paths():
                remove_folder(path)
            make_folder(self.path)
            return self
        os.makedirs(self._parent, exist_ok=True)
        for _ in range(_NUM_TRIES):
            self._lock = self._make_locked()
            # Two processes that start together see one another, and retry after random pauses.
            if self._lock is not None and not any([*map(self._is_alive, self._stale_paths())]):
                return self
            self._give_up()
            time.sleep(random.uniform(0.0, _LONGEST_PAUSE_SECONDS))
        raise OutputExistsError(
            "Another process is writing this output.",
            where=self._target,
            remedy="Wait for it to end, or name another folder.",
        )

    def __exit__(self, *exception: object) -> None:
        if self._is_local:
            self._give_up()
            return
        with contextlib.suppress(OSError):
            remove_folder(self.path)

    def publish(self, files: Iterable[str] | None = None) -> None:
        """Makes the folder durable and gives it its name.

        `files` replaces the listing of a store, which may be outdated. Raises OutputExistsError if
        the target exists by now.
        """
        require_absent(self._target)
        written = list_folder(self.path) if files is None or self._is_local else files
        names = sorted(written, key=lambda name: name == self._last_file)
        if not self._is_local:
            make_folder(self._target)
            for name in names:
                source = os.path.join(self.path, name)
                rename_remote_file(source, os.path.join(self._target, name))
            return
        for name in names:
            flush_to_disk(os.path.join(self.path, name))
        flush_to_disk(self.path)
        os.rename(self.path, self._target)
        flush_to_disk(self._parent)

    def _make_locked(self) -> int | None:
        """Creates the folder, under another name until it is locked.

        A lock on the parent folder would do as well, but a trainer may hold that one.
        """
        unlocked = os.path.join(self._parent, _LOCKING + os.path.basename(self.path))
        os.mkdir(unlocked)
        try:
            descriptor = os.open(unlocked, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None  # another process took it for a leftover
        try:
            lock(descriptor, waits=True)
            os.rename(unlocked, self.path)
        except FileNotFoundError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _give_up(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _stale_paths(self) -> list[str]:
        """Returns the hidden folders of other processes for the same target."""
        beginning = f".{self._name}{_MARK}"
        beginnings = (beginning, _LOCKING + beginning)
        paths = [
            os.path.join(self._parent, name)
            for name in list_folder(self._parent)
            if name.startswith(beginnings)
        ]
        return [path for path in paths if path != self.path]

    def _is_alive(self, path: str) -> bool:
        """True if a process is writing into a folder; a leftover is removed."""
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            lock(folder)
            if os.path.basename(path).startswith(_LOCKING):
                with contextlib.suppress(OSError):
                    os.rmdir(path)
            else:
                remove_folder(path)
        except BlockingIOError:
            return True
        finally:
            os.close(folder)
        return False


def require_absent(path: str) -> None:
    """Raises OutputExistsError if an output exists already."""
    if path_exists(path):
        raise OutputExistsError(
            "The output exists already.",
            where=path,
            remedy="Give another name, or remove it.",
        )
