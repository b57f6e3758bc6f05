"""File of a generation session, written by one process at a time."""

import contextlib
import hashlib
import os
from types import TracebackType
from typing import Self

from txl_tf.errors import InputMissingError, JobError, OutputExistsError, StorageError
from txl_tf.storage.files import (
    file_bytes,
    file_sha256,
    first_line,
    is_remote,
    path_exists,
    read_file,
    write_file,
)
from txl_tf.storage.locks import DirectoryLock

_NAME_ANOTHER = "Name a file that was saved before."


class SessionFile:
    """Session file that one process at a time keeps up to date, also in an object store.

    While it is entered, other writers are refused. The lock is the folder `.NAME.lock` beside the
    file, see `DirectoryLock`. Reading needs no lock: at every moment the old or the new file is
    there.

    Args:
        path: path of the file, also a remote one.

    Attributes:
        path: str.

    Raises:
        OutputExistsError: On entering, if another process is writing it.
        StorageError: On entering, if its folder does not exist or cannot be written.

    Example:
    ```python
    with SessionFile("story.npz") as file:
        if file.exists():
            session.load(file)
        session.write(prompt_ids, max_tokens=100)
        session.save(file)
    ```
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        folder, name = os.path.split(self.path)
        self._folder = folder or "."
        self._lock_folder = os.path.join(self._folder, f".{name}.lock")
        self._lock: DirectoryLock | None = None

    def __enter__(self) -> Self:
        if not is_remote(self.path) and not os.path.isdir(self._folder):
            raise StorageError(
                "There is no such folder.", where=self._folder, remedy="Make it, or name another."
            )
        lock = DirectoryLock(self._lock_folder)
        try:
            lock.__enter__()
        except OutputExistsError as error:
            raise OutputExistsError(
                f"Another process is writing this session. {error.what}",
                where=self.path,
                remedy="Wait for it to end, end it, or name another session.",
            ) from error
        self._lock = lock
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        lock, self._lock = self._lock, None
        if lock is None:
            return
        lock.__exit__(exception_type, exception, traceback)
        if not is_remote(self.path):
            # A killed process leaves the folder; the next process removes it at its end.
            with contextlib.suppress(OSError):
                os.rmdir(self._lock_folder)

    def exists(self) -> bool:
        """Returns `True` if the file exists."""
        return path_exists(self.path)

    def size(self) -> int:
        """Returns the size of the file in bytes; raises as `read`."""
        with self._reading():
            return file_bytes(self.path)

    def read(self, max_bytes: int) -> bytes:
        """Reads the whole file.

        Args:
            max_bytes: int. A longer file is refused before it is read.

        Raises:
            InputMissingError: If the file does not exist.
            DataDamagedError: If it is longer, or is not a regular file.
            StorageError: If it cannot be read.
        """
        with self._reading():
            return read_file(self.path, max_bytes=max_bytes)

    def write(self, content: bytes, *, replaces: str | None = None) -> str:
        """Writes the file completely or not at all.

        Args:
            content: bytes. The whole content.
            replaces: optional str. SHA-256 of the only content that may be replaced. Defaults to
                `None`: any.

        Returns:
            SHA-256 of the content.

        Raises:
            OutputExistsError: If another process is writing it or has written it.
            OSError: If it cannot be written; the old file stays unchanged.
        """
        if self._lock is None:
            with self:
                return self.write(content, replaces=replaces)
        self._lock.check()
        if replaces is not None:
            with contextlib.suppress(FileNotFoundError):
                if file_sha256(self.path) != replaces:
                    raise OutputExistsError(
                        "Another process has written this session since it was read.",
                        where=self.path,
                        remedy="Load it and go on from there, or save under another name.",
                    )
        write_file(self.path, content)
        return hashlib.sha256(content).hexdigest()

    @contextlib.contextmanager
    def _reading(self):
        try:
            yield
        except JobError:
            raise
        except FileNotFoundError as error:
            raise InputMissingError(
                "There is no session.", where=self.path, remedy=_NAME_ANOTHER
            ) from error
        except OSError as error:
            what = f"The session cannot be read: {first_line(error)}"
            raise StorageError(what, where=self.path, remedy=_NAME_ANOTHER) from error
