"""Folder that is written only while its writer holds the lock, and text that grows in it.

Text is a local file, or in a store a folder of parts.
"""

import concurrent.futures
import contextlib
import os
import re
import uuid
from collections.abc import Callable, Iterator

from txl_tf.storage.files import (
    flush_to_disk,
    flush_tree_to_disk,
    is_remote,
    list_folder,
    make_folder,
    no_check,
    open_regular_file,
    path_exists,
    read_file,
    remove_file,
    remove_folder,
    rename_remote_file,
    write_file,
    write_remote_file,
)

_PART = re.compile(r"part-(\d{10})\.txt")
_NUM_READERS = 16
_TEMPORARY = re.compile(r"\.[^.].*\.tmp")


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
        """Removes unfinished files of killed processes, and returns their paths.

        Temporaries of hidden files stay: a lock may be written right now.
        """
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
