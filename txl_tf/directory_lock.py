"""Keeps a second process from writing into the folder of a run."""

import os
from types import TracebackType
from typing import Self

from txl_tf.errors import StorageError
from txl_tf.file_storage import first_line, is_remote
from txl_tf.local_lock import LocalLock
from txl_tf.lock_owner import LOCK_FILE
from txl_tf.store_lock import StoreLock
from txl_tf.writable_folder import WritableFolder


class DirectoryLock:
    """Lets one process at a time write into a folder.

    A local folder is locked by the kernel (`flock`), which unlocks it when the
    owner ends, however it ends; a process of the same id later changes nothing.
    The lock is on the folder itself and on the file `.lock` in it. The file
    says who the owner is. It is removed in the end and stays after a kill, when
    it locks nothing and the next owner writes it anew. Where it is removed
    while the owner lives, the folder stays locked, and the owner writes it
    again.

    Object stores know no locks. There the object `.lock` names the owner, who
    writes the time into an object of its own every `heartbeat_seconds`. The
    lock is taken over when that has not been written for `stale_seconds`, or at
    once when its owner was a process of this machine that is gone. Clocks must
    agree to within a part of that, and two that come in the same moment are
    told apart by reading again after `settle_seconds`.

    The owner of a folder that is removed, renamed or replaced has lost it, and
    so has the owner whose `.lock` another one stands in the place of. A process
    that was frozen meanwhile finds out by `check`, which `folder` calls before
    every change.

    Args:
        folder: path of the folder, also a remote one; made if it is not there.
        heartbeat_seconds: float. Time between two signs of life, remote only.
        stale_seconds: float. Silence after which the owner counts as gone.
        settle_seconds: float. Wait before the lock counts as one's own.

    Raises:
        OutputExistsError: On entering, if another process has the lock, or a
            link is in its place.
        StorageError: On entering, if the lock cannot be written.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        heartbeat_seconds: float = 20.0,
        stale_seconds: float = 90.0,
        settle_seconds: float = 1.0,
    ) -> None:
        self._folder = os.fspath(folder)
        self._lock: LocalLock | StoreLock
        if is_remote(self._folder):
            self._lock = StoreLock(self._folder, heartbeat_seconds, stale_seconds, settle_seconds)
        else:
            self._lock = LocalLock(self._folder)

    @staticmethod
    def is_lock(name: str) -> bool:
        """Whether a file of this name is one of a lock, and of nothing else."""
        return name == LOCK_FILE or name.startswith((f"{LOCK_FILE}.", f".{LOCK_FILE}."))

    @property
    def folder(self) -> WritableFolder:
        """The folder for its owner to write into."""
        return WritableFolder.at(
            self._folder,
            self.check,
            descriptor=self._lock.descriptor if isinstance(self._lock, LocalLock) else None,
            token=self._lock.token,
        )

    def __enter__(self) -> Self:
        try:
            self._lock.acquire()
        except OSError as error:
            raise StorageError(
                f"The folder cannot be locked: {first_line(error)}",
                where=self._folder,
                remedy="Check the permissions, or choose another folder.",
            ) from error
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()

    def check(self) -> None:
        """Makes sure that the lock has not been lost; call it before writing.

        Raises:
            OutputExistsError: If this process may not write here any more.
        """
        self._lock.check()
