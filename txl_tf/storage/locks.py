"""Folders with one writer, on a local disk or in a store: their locks, and what is written there.

Text that grows is a local file, or in a store a folder of parts.
"""

import concurrent.futures
import contextlib
import errno
import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Self

from txl_tf.errors import DataDamagedError, OutputExistsError, StorageError
from txl_tf.storage.files import (
    first_line,
    flush_to_disk,
    flush_tree_to_disk,
    is_remote,
    list_folder,
    lock,
    make_folder,
    no_check,
    open_for_writing,
    open_regular_file,
    path_exists,
    read_file,
    remove_file,
    remove_folder,
    rename_remote_file,
    write_file,
    write_remote_file,
)
from txl_tf.storage.untrusted_files import parse_json

LOCK_FILE = ".lock"
_MAX_LOCK_BYTES = 1 << 16
# Time for an owner that is ending or has not written its name yet.
_PATIENCE_SECONDS = 1.0
_POLL_SECONDS = 0.1
# Some network file systems cannot lock folders.
_UNSUPPORTED = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_TOKEN = re.compile(r"[0-9a-f]{32}")
_TEMPORARY = re.compile(r"\.[^.].*\.tmp")
_PART = re.compile(r"part-(\d{10})\.txt")
_NUM_READERS = 16


class WritableFolder:
    """Folder, existing or not, whose files are written and removed only if the writer may.

    `check` raises an error before every change if this process may no longer write here, see
    `DirectoryLock.folder`. `token` makes the temporary names of this writer unique in a store.
    Objects of a store cannot be appended to or cut, and are durable once written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        check: Callable[[], None] = no_check,
        token: str | None = None,
    ) -> None:
        self.path = os.fspath(path)
        self.check = check
        self.is_remote = is_remote(self.path)
        self._token = token or uuid.uuid4().hex

    @staticmethod
    def at(path: "str | os.PathLike[str] | WritableFolder") -> "WritableFolder":
        """Returns the folder of a path; returns a `WritableFolder` unchanged."""
        return path if isinstance(path, WritableFolder) else WritableFolder(path)

    def subfolder(self, *names: str) -> "WritableFolder":
        """Returns a folder below this one, without creating it."""
        return WritableFolder(os.path.join(self.path, *names), self.check, self._token)

    def names(self) -> list[str]:
        """Returns the sorted names in it; empty if it does not exist."""
        return list_folder(self.path)

    def make(self) -> None:
        """Creates the folder and its parents, if missing."""
        with self._changing():
            make_folder(self.path)

    def make_new(self, name: str) -> "WritableFolder":
        """Creates this folder, and one below it that must not exist yet."""
        below = self.subfolder(name)
        if self.is_remote:
            # Stores have no folders that could exist already; unique names keep writers apart.
            below.make()
            return below
        self.make()
        with self._changing():
            os.mkdir(below.path)
        return below

    def write(self, name: str, content: bytes) -> None:
        """Writes a small file, as `write_file` does; creates the folder."""
        self.make()
        if self.is_remote:
            # With a shared name, a late writer would rename the file of another.
            temporary = self._path(f".{name}.{self._token[:12]}.tmp")
            write_remote_file(self._path(name), temporary, content, self.check)
            return
        with self._changing():
            write_file(self._path(name), content)

    def write_new(self, name: str, content: bytes) -> None:
        """Writes a local file that must not exist yet; `flush_tree` makes it durable."""
        with self._changing(), open(self._path(name), "xb") as file:
            file.write(content)

    def remove_file(self, name: str) -> None:
        """Removes a file, if it exists."""
        with self._changing():
            remove_file(self._path(name))

    def remove_folder(self, name: str) -> None:
        """Removes a folder with its contents, if it exists."""
        with self._changing():
            remove_folder(self._path(name))

    def rename(self, name: str, new_name: str) -> None:
        """Renames a file; in a local folder also a folder."""
        with self._changing():
            if self.is_remote:
                rename_remote_file(self._path(name), self._path(new_name))
            else:
                os.rename(self._path(name), self._path(new_name))

    def append(self, name: str, content: bytes) -> None:
        """Appends to an existing local file."""
        with self._changing(), open(self._path(name), "r+b", buffering=0) as file:
            file.seek(0, os.SEEK_END)
            while content:
                content = content[os.write(file.fileno(), content) :]

    def truncate(self, name: str, num_bytes: int) -> None:
        """Cuts off the end of a local file."""
        with self._changing(), open(self._path(name), "r+b") as file:
            file.truncate(num_bytes)
            os.fsync(file)

    def flush(self, name: str | None = None) -> None:
        """Forces a file, or the names in the folder, to a local disk."""
        if not self.is_remote:
            with self._changing():
                flush_to_disk(self.path if name is None else self._path(name))

    def flush_tree(self, name: str) -> None:
        """Forces a folder below it, with all its contents, to a local disk."""
        if not self.is_remote:
            with self._changing():
                flush_tree_to_disk(self._path(name))

    def remove_temporaries(self) -> list[str]:
        """Removes unfinished files of killed processes, but no lock's, and returns their paths."""
        self.check()
        names = [name for name in self.names() if _TEMPORARY.fullmatch(name)]
        for name in names:
            self.remove_file(name)
        return [os.path.join(self.path, name) for name in names]

    def _path(self, name: str) -> str:
        return os.path.join(self.path, name)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Allows one change."""
        self.check()
        try:
            yield
        except OSError:
            # If the folder was just lost, raise that error instead.
            self.check()
            raise


class LocalText:
    """Text in a file on a local disk, which one process appends to.

    Lines reach the operating system before `append` returns, so they survive the process.
    """

    def __init__(self, folder: WritableFolder, name: str, max_line_bytes: int) -> None:
        self._folder = folder
        self._name = name
        self._path = os.path.join(folder.path, name)
        self._max_line_bytes = max_line_bytes

    def lines(self) -> Iterator[bytes] | None:
        """Returns the lines with their ends; `None` if there is no text."""
        return self._read_lines() if path_exists(self._path) else None

    def _read_lines(self) -> Iterator[bytes]:
        with open_regular_file(self._path) as file:
            while line := file.readline(self._max_line_bytes):
                yield line

    def begin(self, header: str) -> None:
        """Replaces the whole text by a header."""
        self._folder.write(self._name, header.encode())

    def cut(self, num_bytes: int) -> None:
        """Keeps only the first `num_bytes`; call `lines` first."""
        # Truncation happens at once or not at all, and leaves the beginning untouched.
        self._folder.truncate(self._name, num_bytes)

    def append(self, text: str, number: int) -> None:
        """Appends text; `number` grows from part to part, and names a part that begins here."""
        self._folder.append(self._name, text.encode())

    def flush(self) -> None:
        """Makes the appended text survive the machine."""
        self._folder.flush(self._name)


class StoredText:
    """Text in a store, where objects cannot be appended to: a folder of parts.

    `append` rewrites the last part until `flush` begins the next. Other methods as `LocalText`.
    """

    def __init__(self, folder: WritableFolder) -> None:
        self._folder = folder
        self._part = ""
        self._text = ""
        self._sizes: dict[str, int] = {}

    def lines(self) -> Iterator[bytes] | None:
        names = [name for name in self._folder.names() if _PART.fullmatch(name)]
        with concurrent.futures.ThreadPoolExecutor(_NUM_READERS) as executor:
            contents = [*executor.map(self._content, names)]
        self._sizes = {name: len(content) for name, content in zip(names, contents, strict=True)}
        return iter(b"".join(contents).splitlines(keepends=True)) if contents else None

    def begin(self, header: str) -> None:
        self.cut(0)
        self._part, self._text = _part_name(0), header
        self._folder.write(self._part, header.encode())

    def cut(self, num_bytes: int) -> None:
        self._folder.remove_temporaries()
        end = sum(self._sizes.values())
        # Last part first, so that a kill leaves a text that is cut less.
        for name, size in reversed(self._sizes.items()):
            begin = end - size
            if num_bytes <= begin:
                self._folder.remove_file(name)
            elif num_bytes < end:
                self._folder.write(name, self._content(name)[: num_bytes - begin])
            end = begin
        self.flush()

    def append(self, text: str, number: int) -> None:
        self._part = self._part or _part_name(number)
        self._text += text
        self._folder.write(self._part, self._text.encode())

    def flush(self) -> None:
        """Begins a new part, because every object is durable once written."""
        self._part = self._text = ""

    def _content(self, name: str) -> bytes:
        return read_file(os.path.join(self._folder.path, name))


def _part_name(number: int) -> str:
    return f"part-{number:010d}.txt"


def appended_text(
    path: str, folder: WritableFolder | None, max_line_bytes: int
) -> LocalText | StoredText:
    """Returns the text in a local file or a store's folder; longer lines are read in pieces."""
    parent, name = os.path.split(path)
    folder = folder or WritableFolder(parent or ".")
    if folder.is_remote:
        return StoredText(folder.subfolder(name))
    return LocalText(folder, name, max_line_bytes)


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
        with open(f"/proc/{int(pid)}/stat") as file:
            # The name, in parentheses, may have spaces in it.
            start = file.read().rpartition(")")[2].split()[19]
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {start}"
    except (OSError, ValueError, TypeError, IndexError, OverflowError):
        return None


def _owner_in(content: bytes) -> dict[str, Any]:
    """Parses the owner from the content of a lock; empty if the content is damaged."""
    try:
        values = parse_json(content)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def _refused(owner: dict[str, Any], path: str) -> OutputExistsError:
    """Creates the error for a folder that another process is writing; `path` is of the lock."""
    name = "another process"
    if "pid" in owner:
        name = f"process {owner['pid']} on {owner.get('host')}, which began {owner.get('since')}"
    return OutputExistsError(
        f"The folder is being written by {name}.",
        where=path,
        remedy="Wait for it to end, end it, or choose another folder.",
    )


def _lost(what: str, path: str) -> OutputExistsError:
    """Creates the error for a folder that this process may no longer write; `what` is a clause."""
    return OutputExistsError(
        f"This process writes nothing any more: {what}.",
        where=path,
        remedy="Start the same command again to resume with what is in the folder now.",
    )


class _LocalLock:
    """Kernel lock on a folder itself and on a file in it.

    The lock on the folder survives the removal of its contents. The file names the owner, and is
    the lock where a file system cannot lock folders. If the path is a link, its target is locked.
    """

    def __init__(self, folder: str) -> None:
        self._path = folder
        self._lock_path = os.path.join(folder, LOCK_FILE)
        self._owner = _this_process()
        self._folder: int | None = None
        self._file: int | None = None
        self._locks_folder = False
        self._has_made_folder = False
        # The background saver checks in its own thread.
        self._checking = threading.Lock()

    @property
    def token(self) -> str:
        """Unique token of this owner."""
        return self._owner["token"]

    def acquire(self) -> None:
        """Takes the lock; raises OutputExistsError if another process has it."""
        self._owner = _this_process()
        self._has_made_folder = not os.path.isdir(self._path)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not self._try_to_acquire():
            if time.monotonic() > deadline:
                raise _refused(self._owner_there(), self._lock_path)
            time.sleep(_POLL_SECONDS)

    def release(self) -> None:
        """Releases the lock; a second call does nothing."""
        with self._checking:
            folder, file = self._folder, self._file
            self._folder = self._file = None
        if folder is None or file is None:
            return
        # Removed while locked: a later process creates a new file, and one that has opened it
        # already notices that the name leads elsewhere.
        with contextlib.suppress(OSError):
            if os.path.samestat(_status_in(folder), os.fstat(file)):
                os.unlink(LOCK_FILE, dir_fd=folder)
            if self._has_made_folder and self._leads_to(folder):
                os.rmdir(self._path)  # fails if something was written
        os.close(file)
        os.close(folder)

    def check(self) -> None:
        """Raises OutputExistsError if this process no longer owns the folder."""
        with self._checking:
            folder = self._folder
            if folder is None or self._file is None:
                raise _lost("the lock of the folder was given back", self._path)
            if not self._leads_to(folder):
                raise self._folder_is_lost()
            try:
                is_ours = os.path.samestat(_status_in(folder), os.fstat(self._file))
            except FileNotFoundError:
                self._restore(folder)
                return
            owner = _owner_in(os.pread(self._file, _MAX_LOCK_BYTES, 0)) if is_ours else {}
            if not is_ours or owner.get("token", self.token) != self.token:
                raise _refused(self._owner_there(), self._lock_path)

    def _restore(self, folder: int) -> None:
        """Writes the lock file again after its removal; the folder stays locked."""
        try:
            file = self._locked_file(folder) if self._locks_folder else None
        except FileNotFoundError as error:  # a removed folder accepts no file
            raise self._folder_is_lost() from error
        if file is None:
            raise _lost("its lock was removed", self._lock_path)
        assert self._file is not None
        os.close(self._file)
        self._file = file

    def _folder_is_lost(self) -> OutputExistsError:
        return _lost("the folder was removed, moved or replaced", self._path)

    def _try_to_acquire(self) -> bool:
        make_folder(self._path)
        try:
            folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False  # the previous owner has just removed the folder
        file = None
        try:
            self._locks_folder = _lock_folder(folder)
            if self._leads_to(folder):
                file = self._locked_file(folder)
        except BlockingIOError:
            return False
        finally:
            if file is None:
                os.close(folder)
        if file is None:
            return False
        self._folder, self._file = folder, file
        return True

    def _locked_file(self, folder: int) -> int | None:
        """Opens, locks and signs the file; returns `None` if another process has it."""
        file = open_for_writing(LOCK_FILE, inside=folder)
        try:
            lock(file)
            if not os.path.samestat(os.fstat(file), _status_in(folder)):
                raise FileNotFoundError
            os.ftruncate(file, 0)
            os.pwrite(file, json.dumps(self._owner).encode(), 0)
        except (BlockingIOError, FileNotFoundError):
            os.close(file)
            return None
        except OSError:
            os.close(file)
            raise
        return file

    def _leads_to(self, folder: int) -> bool:
        """True if the path still leads to the folder of a descriptor."""
        try:
            return os.path.samestat(os.fstat(folder), os.stat(self._path))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _owner_there(self) -> dict[str, Any]:
        with contextlib.suppress(OSError):
            return _content(self._lock_path)
        return {}


def _status_in(folder: int) -> os.stat_result:
    return os.stat(LOCK_FILE, dir_fd=folder, follow_symlinks=False)


def _lock_folder(folder: int) -> bool:
    """Locks a folder itself; returns False if its file system cannot do that."""
    try:
        lock(folder)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return False
        raise
    return True


class _StoreLock:
    """Lock object that names the owner, with a heartbeat object beside it.

    The lock object is written once, on entering. Each owner writes heartbeats into its own object,
    so that a process that wakes up after a freeze cannot overwrite the lock of its successor.
    """

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
        self._owner = _this_process()
        self._loss: OutputExistsError | None = None
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def token(self) -> str:
        """Unique token of this owner."""
        return self._owner["token"]

    def acquire(self) -> None:
        """Takes the lock; raises OutputExistsError if another process has it."""
        make_folder(self._folder)
        there = self._there()
        if there and not self._is_gone(there):
            raise _refused(there, self._path)
        self._owner = _this_process()
        self._loss = None
        self._end.clear()
        self._beat()
        content = {**self._owner, "heartbeat": time.time()}
        write_file(self._path, json.dumps(content).encode())
        time.sleep(self._settle_seconds)
        now = self._there()
        if now.get("token") != self.token:
            self._remove_signs_of(self._owner)
            raise _refused(now, self._path)
        self._remove_signs_of(there)
        self._thread = threading.Thread(target=self._run, name="directory-lock", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Releases the lock; a second call does nothing."""
        if self._thread is None:
            return
        self._end.set()
        self._thread.join()
        self._thread = None
        # An object that cannot be removed becomes stale.
        with contextlib.suppress(OSError):
            self._remove_signs_of(self._owner)
            if self._there().get("token") == self.token:
                remove_file(self._path)

    def check(self) -> None:
        """Raises OutputExistsError if this process has lost the lock."""
        if self._thread is None:
            raise _lost("the lock of the folder was given back", self._path)
        if self._loss is None:
            self._loss = self._found_loss()
        if self._loss is not None:
            # A new error each time: the traceback of an error that is raised again keeps growing.
            loss = self._loss
            raise OutputExistsError(loss.what, where=loss.where, remedy=loss.remedy)

    def _found_loss(self) -> OutputExistsError | None:
        there = self._there()
        if there.get("token") == self.token:
            return None
        if there:
            return _refused(there, self._path)
        return _lost("its lock was removed or damaged", self._path)

    def _run(self) -> None:
        while not self._end.wait(self._heartbeat_seconds):
            # After a long silence the lock may have another owner, and this process must not write.
            # A store that does not answer now may answer next time.
            with contextlib.suppress(OSError):
                self._loss = self._loss or self._found_loss()
                if self._loss is not None:
                    return
                self._beat()

    def _beat(self) -> None:
        content = {"heartbeat": time.time()}
        write_file(self._signs_of(self.token), json.dumps(content).encode())

    def _there(self) -> dict[str, Any]:
        return _content(self._path)

    def _signs_of(self, token: str) -> str:
        return f"{self._path}.{token}"

    def _remove_signs_of(self, owner: dict[str, Any]) -> None:
        token = owner.get("token")
        if isinstance(token, str) and _TOKEN.fullmatch(token):
            remove_file(self._signs_of(token))

    def _is_gone(self, there: dict[str, Any]) -> bool:
        heartbeats = [there.get("heartbeat")]
        token = there.get("token")
        if isinstance(token, str) and _TOKEN.fullmatch(token):
            heartbeats.append(_content(self._signs_of(token)).get("heartbeat"))
        times = [each for each in heartbeats if isinstance(each, int | float)]
        if not times:
            return True  # no living owner leaves it like that
        if time.time() - max(times) > self._stale_seconds:
            return True
        if there.get("host") != socket.gethostname():
            return False
        return _start_of(there.get("pid")) != there.get("process_start")


def _content(path: str) -> dict[str, Any]:
    try:
        return _owner_in(read_file(path))
    except (FileNotFoundError, DataDamagedError):
        return {}


class DirectoryLock:
    """Lock of a folder for one writing process.

    A local folder is locked by the kernel (`flock`), which unlocks it when the owner ends in any
    way. The lock is on the folder and on the file `.lock` in it, which names the owner and is
    removed in the end. After a kill it stays, locks nothing, and is rewritten by the next owner.
    If it is removed while the owner lives, the owner writes it again.

    Object stores have no locks. There the object `.lock` names the owner, which writes a heartbeat
    into its own object every `heartbeat_seconds`. The lock is taken over after `stale_seconds`
    without a heartbeat, or at once if the owner was a process of this machine that is gone. Clocks
    must agree to a fraction of that. Two owners that start together are told apart by reading
    again after `settle_seconds`.

    An owner loses a folder that is removed, renamed or replaced, or whose `.lock` is replaced.
    `check`, which `folder` calls before every change, notices this also after a freeze. Entering
    raises OutputExistsError if another process has the lock, and StorageError if it cannot be
    written.
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
        self._lock: _LocalLock | _StoreLock
        if is_remote(self._folder):
            self._lock = _StoreLock(self._folder, heartbeat_seconds, stale_seconds, settle_seconds)
        else:
            self._lock = _LocalLock(self._folder)

    @property
    def folder(self) -> WritableFolder:
        """Folder for its owner to write into."""
        return WritableFolder(self._folder, self.check, self._lock.token)

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

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def check(self) -> None:
        """Raises OutputExistsError if the lock has been lost; call it before writing."""
        self._lock.check()
