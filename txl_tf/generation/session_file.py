"""The file that a generation session is kept in, and its only writer."""

import contextlib
import hashlib
import os
from types import TracebackType
from typing import Self

from txl_tf.directory_lock import DirectoryLock
from txl_tf.errors import InputMissingError, JobError, OutputExistsError, StorageError
from txl_tf.file_storage import (
    file_bytes,
    file_sha256,
    first_line,
    is_remote,
    path_exists,
    read_file,
    write_file,
)


class SessionFile:
    """A file that one process at a time keeps up to date, also in a store.

    While it is entered, everyone else who wants to write it is refused. The
    lock is the folder `.NAME.lock` beside the file, see `DirectoryLock`. It is
    read without a lock: at every moment there is the old file or the new one.

    Args:
        path: path of the file, also a remote one.

    Attributes:
        path: str.

    Raises:
        OutputExistsError: On entering, if somebody else writes it.
        StorageError: On entering, if there is no such folder, or it cannot be
            written.

    Example:
    ```python
    with SessionFile("story.npz") as file:
        if file.exists():
            session.load(file)
        session.write(prompt_ids, num_tokens=100)
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
            # One that was killed leaves the folder; the next one to end removes it.
            with contextlib.suppress(OSError):
                os.rmdir(self._lock_folder)

    def exists(self) -> bool:
        """Whether there is such a file."""
        return path_exists(self.path)

    def size(self) -> int:
        """The size of the file in bytes.

        Raises:
            InputMissingError: If there is no such file.
            StorageError: If it cannot be asked for.
        """
        with self._reading():
            return file_bytes(self.path)

    def read(self, max_bytes: int) -> bytes:
        """Reads all of it.

        Args:
            max_bytes: int. A longer file is refused before it is read.

        Raises:
            InputMissingError: If there is no such file.
            DataDamagedError: If it is longer, or no regular file.
            StorageError: If it cannot be read.
        """
        with self._reading():
            return read_file(self.path, max_bytes=max_bytes)

    def write(self, content: bytes, *, replaces: str | None = None) -> str:
        """Writes the file, whole or not at all.

        Args:
            content: bytes. All of it.
            replaces: optional str. SHA-256 of what may be there; by default
                anything.

        Returns:
            SHA-256 of the content.

        Raises:
            OutputExistsError: If somebody else writes it or has written it.
            OSError: If it cannot be written; the old file is untouched.
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
                "There is no session.", where=self.path, remedy="Name a file that was saved before."
            ) from error
        except OSError as error:
            raise StorageError(
                f"The session cannot be read: {first_line(error)}",
                where=self.path,
                remedy="Name a file that was saved before.",
            ) from error
