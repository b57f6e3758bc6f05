"""Keeps a second process from writing into the folder of a run."""

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from types import TracebackType
from typing import Any, Self

from txl_tf.errors import OutputExistsError, StorageError
from txl_tf.file_storage import (
    first_line,
    is_remote,
    make_folder,
    read_file,
    remove_file,
    write_file,
)

LOCK_FILE = ".lock"
# A process that is just ending, or has not written its name yet, is given this long.
_PATIENCE_SECONDS = 1.0
_POLL_SECONDS = 0.1


class DirectoryLock:
    """Lets one process at a time write into a folder.

    A local folder is locked by the kernel (`flock`), which unlocks it when the
    owner ends, however it ends; a process of the same id later changes nothing.
    The file `.lock` says who the owner is. It is removed in the end and stays
    after a kill, when it locks nothing and the next owner writes it anew.

    Object stores know no locks. There the object `.lock` names the owner, who
    writes the time into it every `heartbeat_seconds`. It is taken over when it
    has not been written for `stale_seconds`, or at once when its owner was a
    process of this machine that is gone. Clocks must agree to within a part of
    that, and two that come in the same moment are told apart by reading again
    after `settle_seconds`.

    Args:
        folder: path of the folder, also a remote one; made if it is not there.
        heartbeat_seconds: float. Time between two signs of life, remote only.
        stale_seconds: float. Silence after which the owner counts as gone.
        settle_seconds: float. Wait before the lock counts as one's own.

    Raises:
        OutputExistsError: On entering, if another process has the lock.
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
        self._lock: _LocalLock | _RemoteLock
        if is_remote(self._folder):
            self._lock = _RemoteLock(self._folder, heartbeat_seconds, stale_seconds, settle_seconds)
        else:
            self._lock = _LocalLock(self._folder)

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
            OutputExistsError: If another process has taken it over, because
                this one could not write its sign of life for too long.
        """
        self._lock.check()


class _LocalLock:
    """A lock of the kernel's, on a file of the folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._path = os.path.join(folder, LOCK_FILE)
        self._descriptor: int | None = None
        self._has_made_folder = False

    def acquire(self) -> None:
        self._has_made_folder = not os.path.isdir(self._folder)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not self._try_to_acquire():
            if time.monotonic() > deadline:
                raise _refused(_owner_in(_content(self._path)), self._path)
            time.sleep(_POLL_SECONDS)

    def release(self) -> None:
        if self._descriptor is None:
            return
        # Removed while it is locked: who opens it later makes a new one, and who
        # has it open already sees that it is not the one of that name any more.
        with contextlib.suppress(OSError):
            os.unlink(self._path)
            if self._has_made_folder:
                os.rmdir(self._folder)  # fails where something was written
        os.close(self._descriptor)
        self._descriptor = None

    def check(self) -> None:
        """The kernel takes no lock away."""

    def _try_to_acquire(self) -> bool:
        make_folder(self._folder)
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:
            return False  # the owner before has just removed the folder that it had made
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(descriptor), os.stat(self._path)):
                raise FileNotFoundError
        except (BlockingIOError, FileNotFoundError):
            os.close(descriptor)
            return False
        except OSError:
            os.close(descriptor)
            raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(_owner()).encode(), 0)
        self._descriptor = descriptor
        return True


class _RemoteLock:
    """An object that is written again and again by its owner."""

    def __init__(
        self,
        folder: str,
        heartbeat_seconds: float,
        stale_seconds: float,
        settle_seconds: float,
    ) -> None:
        self._folder = folder
        self._path = os.path.join(folder, LOCK_FILE)
        self._heartbeat_seconds = heartbeat_seconds
        self._stale_seconds = stale_seconds
        self._settle_seconds = settle_seconds
        self._owner = _owner()
        self._usurper: dict[str, Any] | None = None
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        make_folder(self._folder)
        there = _content(self._path)
        if there and not self._is_gone(there):
            raise _refused(_owner_in(there), self._path)
        self._owner = _owner()
        self._usurper = None
        self._end.clear()
        self._beat()
        time.sleep(self._settle_seconds)
        there = _content(self._path)
        if there.get("token") != self._owner["token"]:
            raise _refused(_owner_in(there), self._path)
        self._thread = threading.Thread(target=self._run, name="directory-lock", daemon=True)
        self._thread.start()

    def release(self) -> None:
        if self._thread is None:
            return
        self._end.set()
        self._thread.join()
        self._thread = None
        # What cannot be removed becomes stale.
        with contextlib.suppress(OSError):
            if _content(self._path).get("token") == self._owner["token"]:
                remove_file(self._path)

    def check(self) -> None:
        if self._usurper is None:
            there = _content(self._path)
            if there and there.get("token") != self._owner["token"]:
                self._usurper = there
        if self._usurper is not None:
            raise _refused(_owner_in(self._usurper), self._path)

    def _run(self) -> None:
        while not self._end.wait(self._heartbeat_seconds):
            # Whoever was silent for too long finds another owner, and must not write.
            # A store that does not answer now may answer next time.
            with contextlib.suppress(OSError):
                there = _content(self._path)
                if there and there.get("token") != self._owner["token"]:
                    self._usurper = there
                    return
                self._beat()

    def _beat(self) -> None:
        content = {**self._owner, "heartbeat": time.time()}
        write_file(self._path, json.dumps(content).encode())

    def _is_gone(self, there: dict[str, Any]) -> bool:
        heartbeat = there.get("heartbeat")
        if not isinstance(heartbeat, int | float):
            return True  # nobody who lives leaves it like that
        if time.time() - heartbeat > self._stale_seconds:
            return True
        if there.get("host") != socket.gethostname():
            return False
        return _start_of(there.get("pid")) != there.get("process_start")


def _owner() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "process_start": _start_of(os.getpid()),
        "since": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "token": uuid.uuid4().hex,
    }


def _start_of(pid: Any) -> str | None:
    """When a process of this machine began, so that another of its id is told apart."""
    try:
        with open(f"/proc/{int(pid)}/stat") as file:
            # The name, in parentheses, may have spaces in it.
            start = file.read().rpartition(")")[2].split()[19]
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {start}"
    except (OSError, ValueError, TypeError, IndexError):
        return None


def _content(path: str) -> dict[str, Any]:
    """What a lock says; nothing where there is none or it is not whole."""
    try:
        content = json.loads(read_file(path))
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _owner_in(content: dict[str, Any]) -> str:
    if "pid" not in content:
        return "another process"
    return f"process {content['pid']} on {content.get('host')}, which began {content.get('since')}"


def _refused(owner: str, path: str) -> OutputExistsError:
    return OutputExistsError(
        f"The folder is being written by {owner}.",
        where=path,
        remedy="Wait for it to end, end it, or choose another folder.",
    )
