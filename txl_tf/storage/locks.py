"""Locks: of a local file, and of a folder on a local disk or in a store."""

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

from txl_tf.errors import DataDamagedError, OutputExistsError, storage_errors
from txl_tf.storage.files import is_remote, make_folder, read_file, remove_file, write_file
from txl_tf.storage.strict_json import read_json_object
from txl_tf.storage.writable_folder import WritableFolder

LOCK_FILE = ".lock"
# An owner that is just ending, or has not described itself yet, gets this time.
_PATIENCE_SECONDS = 1.0
_POLL_SECONDS = 0.1
_RELEASED = "the lock of the folder was given back"


def open_locked(path: str, *, flags: int = 0) -> int:
    """Opens a local file for writing, and locks it until it is closed or the process ends.

    Creates the file if it is missing. An owner may remove its file before it unlocks it. A process
    that opened the file before would then lock a file without a name, so the path is compared with
    the file after locking, and opened again if they differ.

    Args:
        path: str. Path of the file.
        flags: int. Further flags of `os.open`. Defaults to `0`.

    Returns:
        The file descriptor, which the caller closes.

    Raises:
        BlockingIOError: If another process has locked the file.
    """
    while True:
        descriptor = os.open(path, flags | os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        if is_open_as(descriptor, path):
            return descriptor
        os.close(descriptor)


def is_open_as(descriptor: int, path: str) -> bool:
    """True if a path names the file of a descriptor."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        return False


@contextlib.contextmanager
def locked_folder(
    path: str | os.PathLike[str],
    *,
    heartbeat_seconds: float = 20.0,
    stale_seconds: float = 90.0,
    settle_seconds: float = 1.0,
) -> Iterator[WritableFolder]:
    """Locks a folder for this process, and yields it for writing.

    The protocols are in the docstrings of `_LocalLock` and `_StoreLock`. The yielded folder asks
    the lock before every change. If the file or object `.lock` is removed or replaced, also with
    the whole folder, every further change raises OutputExistsError.

    Args:
        path: str or path. The folder, which is created if it is missing.
        heartbeat_seconds: float. Time between two heartbeats in a store. Defaults to `20`.
        stale_seconds: float. Age of the last heartbeat at which another process takes the lock of
            a store over. Clocks must agree to a fraction of this time. Defaults to `90`.
        settle_seconds: float. Time until a new owner in a store reads the lock again. Defaults to
            `1`.

    Raises:
        OutputExistsError: If another process has the lock.
        StorageError: If the lock cannot be written.
    """
    folder = os.fspath(path)
    lock: _LocalLock | _StoreLock = (
        _StoreLock(folder, heartbeat_seconds, stale_seconds, settle_seconds)
        if is_remote(folder)
        else _LocalLock(folder)
    )
    with storage_errors(
        "The folder cannot be locked", folder, "Check the permissions, or choose another folder."
    ):
        lock.acquire()
    try:
        yield WritableFolder(folder, lock.check)
    finally:
        lock.release()


def _this_process() -> dict[str, Any]:
    """Describes this process as the owner of a lock, with a new token."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "process_start": _start_of(os.getpid()),
        "since": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "token": uuid.uuid4().hex,
    }


def _start_of(pid: Any) -> str | None:
    """Returns the start time of a process, which distinguishes processes with the same id.

    Returns `None` if there is no such process.
    """
    try:
        # The name of the program, in parentheses, may contain spaces. Field 22 is the start time.
        return read_file(f"/proc/{pid}/stat").decode().rpartition(")")[2].split()[19]
    except (OSError, ValueError, IndexError):
        return None


def _read_values(path: str) -> dict[str, Any]:
    """Reads a lock or a heartbeat; an empty dict if it is missing or damaged."""
    try:
        return read_json_object(path)
    except (FileNotFoundError, DataDamagedError):
        return {}


def _describe_owner(owner: dict[str, Any]) -> str:
    if "pid" not in owner:
        return "another process"
    return f"process {owner['pid']} on {owner.get('host')}, which began {owner.get('since')}"


def _folder_in_use_error(path: str) -> OutputExistsError:
    """Creates the error for a folder that another process has locked with the lock at `path`."""
    return OutputExistsError(
        f"The folder is being written by {_describe_owner(_read_values(path))}.",
        where=path,
        remedy="Wait for it to end, end it, or choose another folder.",
    )


def _lock_lost_error(what: str, path: str) -> OutputExistsError:
    """Creates the error for a folder that this process may no longer write.

    `what` says why the lock at `path` is lost.
    """
    return OutputExistsError(
        f"This process stops writing: {what}.",
        where=path,
        remedy="Start the same command again; it resumes from the files that are in the folder.",
    )


class _LocalLock:
    """Lock of a local folder: the kernel locks the file `.lock` in it.

    The owner locks the file with `open_locked` and describes itself in it for error messages. On
    release it removes the file while it is still locked. The kernel unlocks the file when the owner
    ends in any way, so a file that stays after a kill locks nothing.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._path = os.path.join(folder, LOCK_FILE)
        # Descriptor of the locked file; `None` before `acquire` and after `release`.
        self._file: int | None = None

    def acquire(self) -> None:
        """Takes the lock; raises OutputExistsError if another process has it."""
        make_folder(self._folder)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while self._file is None:
            try:
                self._file = open_locked(self._path)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise _folder_in_use_error(self._path) from None
                time.sleep(_POLL_SECONDS)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, json.dumps(_this_process()).encode(), 0)

    def release(self) -> None:
        """Gives the lock back."""
        file, self._file = self._file, None
        assert file is not None
        # A file that replaced the locked one belongs to another process.
        with contextlib.suppress(OSError):
            if is_open_as(file, self._path):
                os.unlink(self._path)
        os.close(file)

    def check(self) -> None:
        """Raises OutputExistsError if this process no longer has the lock."""
        if self._file is None:
            raise _lock_lost_error(_RELEASED, self._path)
        if not is_open_as(self._file, self._path):
            raise _lock_lost_error("the lock of the folder was removed or replaced", self._path)


class _StoreLock:
    """Lock of a folder in a store, which has no locks: objects that the owner writes.

    The object `.lock` describes the owner. Each owner has a heartbeat object of its own beside it.
    An owner takes these steps:

    1. It reads `.lock`, and gives up if the owner there is alive: its last heartbeat is younger
       than `stale_seconds`, and it is not a process of this machine that is gone.
    2. It writes its first heartbeat, so that its lock is never without one.
    3. It writes `.lock`, only this once: a process that continues after a freeze cannot overwrite
       the lock of its successor.
    4. It reads `.lock` again after `settle_seconds`, and gives up if another process has written
       it meanwhile. So one of several processes that start together remains.
    5. A thread writes a heartbeat every `heartbeat_seconds`, and ends when the lock is lost.
    6. `check` reads `.lock` before every change of the folder. A lock that is lost stays lost.
    7. On release it removes its heartbeat, and `.lock` if this still describes it.
    """

    def __init__(
        self, folder: str, heartbeat_seconds: float, stale_seconds: float, settle_seconds: float
    ) -> None:
        self._folder = folder
        self._path = os.path.join(folder, LOCK_FILE)
        self._heartbeat_seconds = heartbeat_seconds
        self._stale_seconds = stale_seconds
        self._settle_seconds = settle_seconds
        self._owner = _this_process()
        # Why this process does not have the lock any more; empty while it has the lock.
        self._loss = ""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="folder-lock", daemon=True)

    def acquire(self) -> None:
        """Takes the lock; raises OutputExistsError if another process has it."""
        make_folder(self._folder)
        before = _read_values(self._path)
        if before and not self._is_gone(before):
            raise _folder_in_use_error(self._path)
        self._beat()
        write_file(self._path, json.dumps(self._owner).encode())
        time.sleep(self._settle_seconds)
        if self._reason_of_loss():
            remove_file(self._heartbeat_of(self._owner))
            raise _folder_in_use_error(self._path)
        if before:
            remove_file(self._heartbeat_of(before))
        self._thread.start()

    def release(self) -> None:
        """Gives the lock back."""
        self._end.set()
        self._thread.join()
        self._loss = self._loss or _RELEASED
        # An object that cannot be removed is stale after some time.
        with contextlib.suppress(OSError):
            remove_file(self._heartbeat_of(self._owner))
            if not self._reason_of_loss():
                remove_file(self._path)

    def check(self) -> None:
        """Raises OutputExistsError if this process no longer has the lock."""
        self._loss = self._loss or self._reason_of_loss()
        if self._loss:
            raise _lock_lost_error(self._loss, self._path)

    def _reason_of_loss(self) -> str:
        """Reads the lock object; returns why it is lost, or an empty string if it is not."""
        owner = _read_values(self._path)
        if owner.get("token") == self._owner["token"]:
            return ""
        return (
            f"{_describe_owner(owner)}, has the lock now"
            if owner
            else "the lock is gone or damaged"
        )

    def _run(self) -> None:
        while not self._end.wait(self._heartbeat_seconds):
            # A store that does not answer now may answer at the next heartbeat.
            with contextlib.suppress(OSError):
                self._loss = self._loss or self._reason_of_loss()
                if self._loss:
                    return
                self._beat()

    def _beat(self) -> None:
        content = json.dumps({"heartbeat": time.time()}).encode()
        write_file(self._heartbeat_of(self._owner), content)

    def _heartbeat_of(self, owner: dict[str, Any]) -> str:
        return f"{self._path}.{owner.get('token')}"

    def _is_gone(self, owner: dict[str, Any]) -> bool:
        heartbeat = _read_values(self._heartbeat_of(owner)).get("heartbeat")
        if not isinstance(heartbeat, int | float):
            return True  # an owner that is alive wrote a heartbeat before its lock
        if time.time() - heartbeat > self._stale_seconds:
            return True
        is_here = owner.get("host") == socket.gethostname()
        return is_here and _start_of(owner.get("pid")) != owner.get("process_start")
