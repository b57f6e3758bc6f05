"""Folder that is written only while its writer holds the lock."""

import abc
import contextlib
import os
import re
import uuid
from collections.abc import Callable, Iterator

from txl_tf.storage.files import (
    is_remote,
    list_folder,
    make_folder,
    no_check,
    remove_file,
    remove_folder,
    rename_remote_file,
    temporary_path,
    write_remote_file,
)
from txl_tf.storage.local_files import (
    flush_in,
    flush_tree_in,
    open_folder,
    open_for_writing,
    remove_file_in,
    remove_folder_in,
    replace_file,
)

_DESCRIPTORS = "/proc/self/fd"
_TEMPORARY = re.compile(r"\.[^.].*\.tmp")


class WritableFolder(abc.ABC):
    """Folder whose files are written and removed only if the writer may.

    `check` raises an error before every change if this process may no longer write here, see
    `DirectoryLock.folder`. A local folder is reached by the descriptor of its lock, never by path:
    if it is removed, renamed or replaced after the check, the change fails or is made in the old
    folder, never in its replacement. No link below the folder is followed. A store has no
    descriptors; there the check comes immediately before each request.
    """

    def __init__(self, path: str, check: Callable[[], None]) -> None:
        self.path = path
        self.check = check

    @staticmethod
    def at(
        path: "str | os.PathLike[str] | WritableFolder",
        check: Callable[[], None] = no_check,
        *,
        descriptor: Callable[[], int] | None = None,
        token: str | None = None,
    ) -> "WritableFolder":
        """Returns the folder of a path, existing or not; returns a `WritableFolder` unchanged.

        `descriptor` returns a descriptor of a local folder; by default the path is opened. `token`
        makes the temporary names of this writer unique in a store.
        """
        if isinstance(path, WritableFolder):
            return path
        path = os.fspath(path)
        if is_remote(path):
            return _RemoteFolder(path, check, token or uuid.uuid4().hex)
        return _LocalFolder(path, check, descriptor)

    @property
    def is_remote(self) -> bool:
        """True if the folder is in a store."""
        return is_remote(self.path)

    @abc.abstractmethod
    def subfolder(self, *names: str) -> "WritableFolder":
        """Returns a folder below this one, without creating it."""

    @abc.abstractmethod
    def names(self) -> list[str]:
        """Returns the sorted names in it; empty if it does not exist."""

    @abc.abstractmethod
    def make(self) -> None:
        """Creates the folder and its parents, if missing."""

    @abc.abstractmethod
    def make_new(self, name: str) -> "WritableFolder":
        """Creates this folder, and one below it that must not exist yet."""

    @abc.abstractmethod
    def write(self, name: str, content: bytes) -> None:
        """Writes a small file, as `write_file` does; creates the folder."""

    @abc.abstractmethod
    def write_new(self, name: str, content: bytes) -> None:
        """Writes a file that must not exist yet; `flush_tree` makes it durable."""

    @abc.abstractmethod
    def remove_file(self, name: str) -> None:
        """Removes a file, if it exists."""

    @abc.abstractmethod
    def remove_folder(self, name: str) -> None:
        """Removes a folder with its contents, if it exists."""

    @abc.abstractmethod
    def rename(self, name: str, new_name: str) -> None:
        """Renames a file; in a local folder also a folder."""

    @abc.abstractmethod
    def append(self, name: str, content: bytes) -> None:
        """Appends to an existing local file."""

    @abc.abstractmethod
    def truncate(self, name: str, num_bytes: int) -> None:
        """Cuts off the end of a local file."""

    @abc.abstractmethod
    def flush(self, name: str | None = None) -> None:
        """Forces a file, or the names in the folder, to a local disk."""

    @abc.abstractmethod
    def flush_tree(self, name: str) -> None:
        """Forces a folder below it, with all its contents, to a local disk."""

    @abc.abstractmethod
    def reached_by_path(self) -> contextlib.AbstractContextManager[str]:
        """Creates the folder and yields a path for code that can only write by path.

        The path of a local folder leads to this very folder until the `with` block ends, even if
        the folder is moved.
        """

    def remove_temporaries(self) -> list[str]:
        """Removes unfinished files of killed processes, and returns their paths.

        Temporaries of hidden files stay: a lock may be written right now.
        """
        self.check()
        names = [name for name in self.names() if _TEMPORARY.fullmatch(name)]
        for name in names:
            self.remove_file(name)
        return [os.path.join(self.path, name) for name in names]


class _LocalFolder(WritableFolder):
    """Folder on a local disk, below a descriptor or a path."""

    def __init__(
        self,
        path: str,
        check: Callable[[], None],
        descriptor: Callable[[], int] | None,
        names: tuple[str, ...] = (),
    ) -> None:
        super().__init__(os.path.join(path, *names), check)
        self._top = path
        self._descriptor = descriptor
        self._names = names

    def subfolder(self, *names: str) -> "_LocalFolder":
        return _LocalFolder(self._top, self.check, self._descriptor, (*self._names, *names))

    def names(self) -> list[str]:
        try:
            with self._opened() as folder:
                return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []

    def make(self) -> None:
        with self._changing(makes=True):
            pass

    def make_new(self, name: str) -> "_LocalFolder":
        with self._changing(makes=True) as folder:
            os.mkdir(name, dir_fd=folder)
        return self.subfolder(name)

    def write(self, name: str, content: bytes) -> None:
        with self._changing(makes=True) as folder:
            replace_file(folder, name, temporary_path(name), content)

    def write_new(self, name: str, content: bytes) -> None:
        with (
            self._changing() as folder,
            os.fdopen(open_for_writing(name, inside=folder, must_be_new=True), "wb") as file,
        ):
            file.write(content)

    def remove_file(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._changing() as folder:
            remove_file_in(folder, name)

    def remove_folder(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._changing() as folder:
            remove_folder_in(folder, name)

    def rename(self, name: str, new_name: str) -> None:
        with self._changing() as folder:
            os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=folder)

    def append(self, name: str, content: bytes) -> None:
        with self._changing() as folder, _opened_file(folder, name, appends=True) as file:
            if os.fstat(file).st_nlink > 1:
                self._replace(folder, name, file, None, content)
                return
            while content:
                content = content[os.write(file, content) :]

    def truncate(self, name: str, num_bytes: int) -> None:
        with self._changing() as folder, _opened_file(folder, name) as file:
            if os.fstat(file).st_nlink > 1:
                self._replace(folder, name, file, num_bytes, b"")
                return
            os.ftruncate(file, num_bytes)
            os.fsync(file)

    def flush(self, name: str | None = None) -> None:
        with self._changing() as folder:
            if name is None:
                os.fsync(folder)
            else:
                flush_in(folder, name)

    def flush_tree(self, name: str) -> None:
        with self._changing() as folder:
            flush_tree_in(folder, name)

    @contextlib.contextmanager
    def reached_by_path(self) -> Iterator[str]:
        with self._changing(makes=True) as folder:
            path = f"{_DESCRIPTORS}/{folder}"
            yield path if os.path.isdir(path) else self.path

    @contextlib.contextmanager
    def _changing(self, makes: bool = False) -> Iterator[int]:
        """Yields a descriptor of the folder, for one change that is allowed."""
        self.check()
        try:
            with self._opened(makes) as folder:
                yield folder
        except OSError:
            # If the folder was just lost, raise that error instead.
            self.check()
            raise

    @contextlib.contextmanager
    def _opened(self, makes: bool = False) -> Iterator[int]:
        if self._descriptor is None:
            if makes:
                make_folder(self._top)
            folder = open_folder(self._top)
        else:
            folder = os.dup(self._descriptor())
        try:
            for name in self._names:
                below = _open_below(folder, name, makes)
                os.close(folder)
                folder = below
            yield folder
        finally:
            os.close(folder)

    @staticmethod
    def _replace(folder: int, name: str, file: int, num_bytes: int | None, added: bytes) -> None:
        """Replaces a file by a changed copy, so that hard links to it stay unchanged."""
        with os.fdopen(os.dup(file), "rb") as shared:
            shared.seek(0)
            content = shared.read() if num_bytes is None else shared.read(num_bytes)
        replace_file(folder, name, temporary_path(name), content + added)


class _RemoteFolder(WritableFolder):
    """Folder in a store."""

    def __init__(self, path: str, check: Callable[[], None], token: str) -> None:
        super().__init__(path, check)
        self._token = token

    def subfolder(self, *names: str) -> "_RemoteFolder":
        return _RemoteFolder(os.path.join(self.path, *names), self.check, self._token)

    def names(self) -> list[str]:
        return list_folder(self.path)

    def make(self) -> None:
        self.check()
        make_folder(self.path)

    def make_new(self, name: str) -> "_RemoteFolder":
        below = self.subfolder(name)
        # Stores have no folders that could exist already; unique names keep writers apart.
        below.make()
        return below

    def write(self, name: str, content: bytes) -> None:
        self.make()
        # With a shared name, a late writer would rename the file of another.
        temporary = os.path.join(self.path, f".{name}.{self._token[:12]}.tmp")
        write_remote_file(os.path.join(self.path, name), temporary, content, self.check)

    def write_new(self, name: str, content: bytes) -> None:
        self.write(name, content)

    def remove_file(self, name: str) -> None:
        self.check()
        remove_file(os.path.join(self.path, name))

    def remove_folder(self, name: str) -> None:
        self.check()
        remove_folder(os.path.join(self.path, name))

    def rename(self, name: str, new_name: str) -> None:
        self.check()
        rename_remote_file(os.path.join(self.path, name), os.path.join(self.path, new_name))

    def append(self, name: str, content: bytes) -> None:
        raise NotImplementedError("objects of a store cannot be appended to")

    def truncate(self, name: str, num_bytes: int) -> None:
        raise NotImplementedError("objects of a store cannot be cut")

    def flush(self, name: str | None = None) -> None:
        """Does nothing, because every object is durable once written."""

    def flush_tree(self, name: str) -> None:
        """Does nothing, because every object is durable once written."""

    @contextlib.contextmanager
    def reached_by_path(self) -> Iterator[str]:
        self.make()
        yield self.path


@contextlib.contextmanager
def _opened_file(folder: int, name: str, appends: bool = False) -> Iterator[int]:
    file = open_for_writing(name, inside=folder, appends=appends, reads=True, must_exist=True)
    try:
        yield file
    finally:
        os.close(file)


def _open_below(folder: int, name: str, makes: bool) -> int:
    try:
        return open_folder(name, inside=folder)
    except FileNotFoundError:
        if not makes:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=folder)
    os.fsync(folder)
    return open_folder(name, inside=folder)
