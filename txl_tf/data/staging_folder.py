"""A folder that appears under its name only when it is complete."""

import contextlib
import fcntl
import os
import shutil
import uuid
from types import TracebackType
from typing import Self

from txl_tf.durability import flush_to_disk
from txl_tf.errors import OutputExistsError
from txl_tf.file_storage import list_folder

_MARK = ".preparing-"


class StagingFolder:
    """A hidden folder beside its target, renamed to it at the end.

    Leaving the `with` block without `publish` removes the hidden folder.
    Hidden folders that killed processes left for the same target are removed
    on entering. On a local disk a living process holds a lock on its folder; an
    object store has no locks, and there a second job for one target removes
    what the first has written.

    Args:
        target: str. The folder to be made.
        last_file: str. The file that marks the folder as complete. Object
            stores rename file by file, and this one last.

    Raises:
        OutputExistsError: On entering, if the target exists or another process
            is writing it.
    """

    def __init__(self, target: str, *, last_file: str) -> None:
        self._target = target.rstrip("/")
        self._is_local = "://" not in target
        if self._is_local:
            self._target = os.path.abspath(self._target)
        self._parent, self._name = os.path.split(self._target)
        self._last_file = last_file
        self._lock: int | None = None
        self.path = os.path.join(self._parent, f".{self._name}{_MARK}{uuid.uuid4().hex[:12]}")

    def __enter__(self) -> Self:
        require_absent(self._target)
        if not self._is_local:
            import tensorflow as tf

            tf.io.gfile.makedirs(self._parent)
            for path in self._stale_paths():
                tf.io.gfile.rmtree(path)
            tf.io.gfile.makedirs(self.path)
            return self
        os.makedirs(self._parent, exist_ok=True)
        parent = os.open(self._parent, os.O_RDONLY)
        try:
            # Held only for this moment, so that nobody sees a folder not yet locked.
            fcntl.flock(parent, fcntl.LOCK_EX)
            for path in self._stale_paths():
                self._remove_stale(path)
            os.mkdir(self.path)
            self._lock = os.open(self.path, os.O_RDONLY)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        finally:
            os.close(parent)
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_local:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            import tensorflow as tf

            with contextlib.suppress(tf.errors.OpError):
                tf.io.gfile.rmtree(self.path)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def publish(self) -> None:
        """Makes the folder durable and gives it its name.

        Raises:
            OutputExistsError: If the target has come to exist.
        """
        require_absent(self._target)
        names = sorted(list_folder(self.path), key=lambda name: name == self._last_file)
        if not self._is_local:
            import tensorflow as tf

            tf.io.gfile.makedirs(self._target)
            for name in names:
                source = os.path.join(self.path, name)
                tf.io.gfile.rename(source, os.path.join(self._target, name))
            return
        for name in names:
            flush_to_disk(os.path.join(self.path, name))
        flush_to_disk(self.path)
        os.rename(self.path, self._target)
        flush_to_disk(self._parent)

    def _stale_paths(self) -> list[str]:
        prefix = f".{self._name}{_MARK}"
        names = list_folder(self._parent)
        return [os.path.join(self._parent, name) for name in names if name.startswith(prefix)]

    def _remove_stale(self, path: str) -> None:
        folder = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path)
        except BlockingIOError as error:
            raise OutputExistsError(
                "Another process is writing this output.",
                where=self._target,
                remedy="Wait for it to end, or name another folder.",
            ) from error
        finally:
            os.close(folder)


def require_absent(path: str) -> None:
    """Checks that an output does not exist yet.

    Args:
        path: str. The file or folder to be made.

    Raises:
        OutputExistsError: If it exists.
    """
    if "://" in path:
        import tensorflow as tf

        exists = tf.io.gfile.exists(path)
    else:
        exists = os.path.lexists(path)
    if exists:
        raise OutputExistsError(
            "The output exists already.",
            where=path,
            remedy="Name another folder, or remove this one.",
        )
