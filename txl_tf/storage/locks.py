"""Locks of folders, on a local disk or in a store."""

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
# Time for an owner that is ending or has not written its name yet.
_PATIENCE_SECONDS = 1.0
_POLL_SECONDS = 0.1
_RELEASED = "the lock of the folder was given back"


def open_locked(path: str, *, flags: int = 0) -> int:
    """Opens a local file for writing, and locks it until it is closed or the process ends.

    Creates the file unless it exists. `flags` are more of `os.open`. Raises BlockingIOError if
    another process has locked it.
    """
    while True:
        descriptor = os.open(path, flags | os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        # The owner before may have removed the file after it was opened here.
        if is_open_as(descriptor, path):
            return descriptor
        os.close(descriptor)


def is_open_as(descriptor: int, path: str) -> bool:
    """True if a path leads to the file of a descriptor."""
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

    On a local disk the kernel locks the file `.lock` in the folder, which names the owner, and
    unlocks it when the owner ends in any way. After a kill the file stays and locks nothing.

    Object stores have no locks. There the object `.lock` names the owner, which writes a heartbeat
    into another object every `heartbeat_seconds`. The lock is taken over after `stale_seconds`
    without a heartbeat, or at once if the owner was a process of this machine that is gone. Clocks
    must agree to a fraction of that. Two owners that start together are told apart by reading
    again after `settle_seconds`.

    If `.lock` is removed or replaced, also with the whole folder, the owner may no longer write.
    Raises OutputExistsError if another process has the lock, and StorageError if it cannot be
    written.
    """
    folder = os.fspath(path)
    lock: _LocalLock | _StoreLock = (
        _StoreLock(folder, heartbeat_seconds, stale_seconds, settle_seconds)
        if is_remote(folder)
        else _LocalLock(folder)
    )
    remedy = "Check the permissions, or choose another folder."
    with storage_errors("The folder cannot be locked", folder, remedy):
        lock.acquire()
    try:
        yield WritableFolder(folder, lock.check)
    finally:
        lock.release()


def _this_process() -> dict[str, Any]:
    """Describes this process as an owner, with a new token."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "process_start": _start_of(os.getpid()),
        "since": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "token": uuid.uuid4().hex,
    }


def _start_of(pid: Any) -> str | None:
    """Returns the start time of a process, which tells processes with equal ids apart."""
    try:
        # The name of the program, in parentheses, may have spaces in it.
        return read_file(f"/proc/{pid}/stat").decode().rpartition(")")[2].split()[19]
    except (OSError, ValueError, IndexError):
        return None


def _read_values(path: str) -> dict[str, Any]:
    """Reads a lock or a heartbeat; empty if it is missing or damaged."""
    try:
        return read_json_object(path)
    except (FileNotFoundError, DataDamagedError):
        return {}


def _describe_owner(owner: dict[str, Any]) -> str:
    if "pid" not in owner:
        return "another process"
    return f"process {owner['pid']} on {owner.get('host')}, which began {owner.get('since')}"


def _folder_in_use_error(path: str) -> OutputExistsError:
    """Creates the error for a folder that another process has locked; `path` is of the lock."""
    return OutputExistsError(
        f"The folder is being written by {_describe_owner(_read_values(path))}.",
        where=path,
        remedy="Wait for it to end, end it, or choose another folder.",
    )


def _lock_lost_error(what: str, path: str) -> OutputExistsError:
    """Creates the error for a folder that this process may no longer write; `what` tells why."""
    return OutputExistsError(
        f"This process stops writing: {what}.",
        where=path,
        remedy="Start the same command again; it resumes from the files that are in the folder.",
    )


class _LocalLock:
    """Kernel lock on the file `.lock` of a folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._path = os.path.join(folder, LOCK_FILE)
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
        """Releases the lock."""
        file, self._file = self._file, None
        assert file is not None
        # Removed while locked, see `open_locked`.
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
    """Lock object that names the owner, and a heartbeat object of each owner beside it.

    The lock object is written once, on entering, so that a process that wakes up after a freeze
    cannot overwrite the lock of its successor.
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
        if self._found_loss():
            remove_file(self._heartbeat_of(self._owner))
            raise _folder_in_use_error(self._path)
        if before:
            remove_file(self._heartbeat_of(before))
        self._thread.start()

    def release(self) -> None:
        """Releases the lock."""
        self._end.set()
        self._thread.join()
        self._loss = self._loss or _RELEASED
        # An object that cannot be removed becomes stale.
        with contextlib.suppress(OSError):
            remove_file(self._heartbeat_of(self._owner))
            if not self._found_loss():
                remove_file(self._path)

    def check(self) -> None:
        """Raises OutputExistsError if this process no longer has the lock."""
        self._loss = self._loss or self._found_loss()
        if self._loss:
            raise _lock_lost_error(self._loss, self._path)

    def _found_loss(self) -> str:
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
            # A store that does not answer now may answer next time.
            with contextlib.suppress(OSError):
                self._loss = self._loss or self._found_loss()
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
            return True  # an owner writes it before its lock
        if time.time() - heartbeat > self._stale_seconds:
            return True
        is_here = owner.get("host") == socket.gethostname()
        return is_here and _start_of(owner.get("pid")) != owner.get("process_start")
