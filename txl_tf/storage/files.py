"""Files on a local disk, or in a store that TensorFlow reads (`gs://`, `ram://`).

A path with `://` is remote. Local paths never need TensorFlow. All failures are `OSError`, so
callers need not distinguish the two.
"""

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from typing import IO

from txl_tf.errors import DataDamagedError, OutputExistsError
from txl_tf.imports import tensorflow as tf

_BLOCK_BYTES = 4 << 20
_LISTING_TRIES = 3
# TensorFlow's client for stores has no block size per file. It reads ahead by a setting of the
# process, 64 MiB by default, unless a larger block is requested. Rows of a training run begin
# everywhere in a data set and need little of each place at first. So the read-ahead is short, and
# whole files are read by large requests.
READ_SETTINGS = {
    # Three reads of the segment reader and some bytes: with records of 4096 tokens, at least one
    # whole record after the beginning of a row.
    "GCS_READAHEAD_BUFFER_SIZE_BYTES": str(49 << 10),
    # The build for TPUs caches aligned blocks of the read-ahead size, and would read a large file
    # with one request per block.
    "GCS_READ_CACHE_MAX_SIZE_MB": "0",
}
"""Environment variables of the client and their values."""
_REQUEST_BYTES = 8 << 20


def no_check() -> None:
    """Allows every change, for a writer that holds no lock."""


def is_remote(path: str | os.PathLike[str]) -> bool:
    """True if a path needs TensorFlow's file systems."""
    return "://" in os.fspath(path)


def first_line(error: BaseException) -> str:
    """Returns up to 200 characters of an error's first line, or its class name if it is empty."""
    # TensorFlow names its operation in front, which is longer than the reason.
    text = re.sub(r"^\{\{.*?\}\} ", "", str(error).strip())
    return (text.splitlines() or [type(error).__name__])[0][:200]


def file_sha256(path: str, progress: Callable[[int], None] | None = None) -> str:
    """Returns the hexadecimal SHA-256 of a file; `progress` gets the bytes of each block."""
    digest = hashlib.sha256()
    for block in file_blocks(path):
        digest.update(block)
        if progress is not None:
            progress(len(block))
    return digest.hexdigest()


def file_blocks(path: str, block_bytes: int = _BLOCK_BYTES) -> Iterator[bytes]:
    """Yields the blocks of a file in order. Raises DataDamagedError if it is not a regular file."""
    with _as_os_errors(path):
        if is_remote(path):
            yield from _read_blocks(path, file_bytes(path), block_bytes)
            return
        with _open_for_reading(path) as file:
            while block := file.read(block_bytes):
                yield block


def read_file(path: str, *, max_bytes: int | None = None) -> bytes:
    """Reads a small file; DataDamagedError if it is not regular or longer than `max_bytes`."""
    if max_bytes is not None and file_bytes(path) > max_bytes:
        raise DataDamagedError(
            f"The file has more than {max_bytes:,} bytes, the most that is read of its kind.",
            where=path,
            remedy="Restore it from a copy.",
        )
    with _as_os_errors(path), _open_for_reading(path) as file:
        # In blocks to the end, because the file may have grown. A read without a size would take as
        # much memory as the size that a store's client remembers.
        return b"".join(iter(functools.partial(file.read, _BLOCK_BYTES), b""))


def write_file(path: str, content: bytes) -> None:
    """Writes a small file that is the old or the new one at every moment.

    Local files are forced to the disk before the rename. A store makes an object durable when it
    is closed, but not every store hides an open one, so it is renamed too. A killed process may
    leave `temporary_path(path)`, which the next write replaces.
    """
    temporary = temporary_path(path)
    if is_remote(path):
        write_remote_file(path, temporary, content)
        return
    remove_file(temporary)
    try:
        with os.fdopen(open_for_writing(temporary, must_be_new=True), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            remove_file(temporary)
        raise
    flush_to_disk(os.path.dirname(path) or ".")


def temporary_path(path: str) -> str:
    """Returns the path that `write_file` writes before it renames."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.tmp")


def path_exists(path: str) -> bool:
    """True if there is a file or folder at the path."""
    if not is_remote(path):
        return os.path.lexists(path)
    with _as_os_errors(path):
        return tf.io.gfile.exists(path)


def file_bytes(path: str) -> int:
    """Returns the size of a file, in bytes; FileNotFoundError if it is not there."""
    with _as_os_errors(path):
        if not is_remote(path):
            return os.stat(path).st_size
        return tf.io.gfile.stat(path).length


def list_folder(folder: str) -> list[str]:
    """Returns the sorted names in a folder, none without one; OSError if it cannot be listed."""
    if not is_remote(folder):
        try:
            return sorted(os.listdir(folder or "."))
        except FileNotFoundError:
            return []
    with _as_os_errors(folder):
        # `listdir` reports every failure to find the folder as "not found". In a store, a file of
        # this name counts as an empty folder.
        for _ in range(_LISTING_TRIES):
            try:
                # Object stores mark folders by a trailing slash.
                return sorted({name.rstrip("/") for name in tf.io.gfile.listdir(folder)})
            except tf.errors.NotFoundError:
                if not is_folder(folder):
                    return []
    raise OSError(errno.EIO, "The folder is there and cannot be listed.", folder)


def is_folder(path: str) -> bool:
    """True if there is a folder at the path; raises OSError if this is unknown."""
    if not is_remote(path):
        return os.path.isdir(path)
    with _as_os_errors(path):
        try:
            # Not `isdir`, which is false on every failure.
            return bool(tf.io.gfile.stat(path).is_directory)
        except tf.errors.NotFoundError:
            return False


def make_folder(folder: str) -> None:
    """Creates a folder and its parents, if missing; local ones are on the disk afterwards."""
    if is_remote(folder):
        with _as_os_errors(folder):
            tf.io.gfile.makedirs(folder)
        return
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(os.path.abspath(folder))
    make_folder(parent)
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not os.path.isdir(folder):  # otherwise another process was faster
            raise
    flush_to_disk(parent)


def remove_file(path: str) -> None:
    """Removes a file, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        if not is_remote(path):
            os.unlink(path)
            return
        with _as_os_errors(path):
            tf.io.gfile.remove(path)


def remove_folder(folder: str) -> None:
    """Removes a folder with its contents, if it exists; a link to a folder is removed itself."""
    with contextlib.suppress(FileNotFoundError):
        if not is_remote(folder):
            remove = os.unlink if os.path.islink(folder) else shutil.rmtree
            remove(folder)
            return
        with _as_os_errors(folder):
            try:
                tf.io.gfile.rmtree(folder)
            except tf.errors.PermissionDeniedError:
                # Also raised for files that are gone but still listed.
                if _has_files(folder):
                    raise


def _has_files(folder: str) -> bool:
    paths = [os.path.join(folder, name) for name in list_folder(folder)]
    return any(_has_files(path) if is_folder(path) else path_exists(path) for path in paths)


def _open_for_reading(path: str) -> IO[bytes]:
    """Opens a file; plain files read a local disk four times as fast as TensorFlow's."""
    if not is_remote(path):
        return open_regular_file(path)
    return tf.io.gfile.GFile(path, "rb")


@contextlib.contextmanager
def open_new(path: str) -> Iterator[IO[bytes]]:
    """Opens a file for writing, which must not exist yet where it is local."""
    with _as_os_errors(path):
        if not is_remote(path):
            with open(path, "xb") as local_file:
                yield local_file
            return
        with tf.io.gfile.GFile(path, "wb") as file:
            yield file


def open_regular_file(path: str | os.PathLike[str]) -> IO[bytes]:
    """Opens a local file, following links; DataDamagedError for a pipe, a device or a folder."""
    with _as_os_errors(os.fspath(path)):
        # Without O_NONBLOCK, opening a pipe blocks.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise DataDamagedError(
        "The file must be a regular file, not a folder, a device or a pipe.",
        where=os.fspath(path),
        remedy="Remove it, or restore the file from a copy.",
    )


def write_remote_file(
    path: str, temporary: str, content: bytes, check: Callable[[], None] = no_check
) -> None:
    """Writes a small object of a store under a temporary name and renames it.

    `check` is called before both, and raises an error if this process may no longer write. The old
    object stays untouched on failure.
    """
    check()
    try:
        with _as_os_errors(path):
            with tf.io.gfile.GFile(temporary, "wb") as file:
                file.write(content)
            check()
            tf.io.gfile.rename(temporary, path, overwrite=True)
    except BaseException:
        with contextlib.suppress(OSError):
            remove_file(temporary)
        raise


def rename_remote_file(source: str, target: str) -> None:
    """Renames an object of a store, replacing an object of the new name."""
    with _as_os_errors(source):
        tf.io.gfile.rename(source, target, overwrite=True)


@contextlib.contextmanager
def _as_os_errors(path: str) -> Iterator[None]:
    if not is_remote(path):
        try:
            yield
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            what = "A link to itself is where a file must be."
            raise DataDamagedError(what, where=path, remedy="Restore it from a copy.") from error
        return
    try:
        yield
    except tf.errors.OpError as error:
        raise _os_error(error, path) from error


def _os_error(error: Exception, path: str) -> OSError:
    numbers = {
        tf.errors.NotFoundError: errno.ENOENT,
        tf.errors.ResourceExhaustedError: errno.ENOSPC,
        tf.errors.PermissionDeniedError: errno.EACCES,
        tf.errors.UnauthenticatedError: errno.EACCES,
    }
    # OSError chooses its subclass by the number, such as FileNotFoundError.
    return OSError(numbers.get(type(error), errno.EIO), first_line(error), path)


def flush_to_disk(path: str | os.PathLike[str]) -> None:
    """Forces a local file, or the names in a folder, to the disk.

    Without this, a power cut after a rename could leave a complete name with incomplete contents.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_tree_to_disk(folder: str | os.PathLike[str]) -> None:
    """Forces a local folder with all its contents to the disk."""
    for parent, _, files in os.walk(folder, topdown=False):
        for name in files:
            flush_to_disk(os.path.join(parent, name))
        flush_to_disk(parent)


def open_for_writing(
    path: str, *, inside: int | None = None, flags: int = 0, must_be_new: bool = False
) -> int:
    """Opens a local file for reading and writing, in place; creates it unless it exists.

    `inside` is the descriptor of its folder, and `flags` are more of `os.open`. Raises
    OutputExistsError if a link, a device, a pipe or a socket is in its place.
    """
    # Without O_NONBLOCK, opening a pipe blocks.
    flags |= os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    flags |= os.O_EXCL if must_be_new else 0
    in_the_way = OutputExistsError(
        "A link, or something else that is no plain file, is in the way; nothing is written "
        "through it.",
        where=path,
        remedy="Move it away.",
    )
    try:
        descriptor = os.open(path, flags, 0o666, dir_fd=inside)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise in_the_way from error
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise in_the_way


def lock(descriptor: int) -> None:
    """Locks a local file or folder until it is closed; BlockingIOError if another process does."""
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def open_locked(path: str, *, flags: int = 0) -> int:
    """Opens a local file for writing and locks it, see `open_for_writing` and `lock`."""
    descriptor = open_for_writing(path, flags=flags)
    try:
        lock(descriptor)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def set_read_ahead() -> None:
    """Sets how this process and its children read, unless set; call it before TensorFlow loads."""
    for name, value in READ_SETTINGS.items():
        os.environ.setdefault(name, value)


def _read_blocks(path: str, num_bytes: int, block_bytes: int) -> Iterator[bytes]:
    """Yields the blocks of a store's file in order, with large requests.

    TensorFlow's own file object would request half a megabyte at a time. Raises
    `tf.errors.OpError` if the file cannot be read or has another size than `num_bytes`.
    """
    pending = b""
    for part in _read_parts(path, num_bytes):
        pending += part
        while len(pending) >= block_bytes:
            yield pending[:block_bytes]
            pending = pending[block_bytes:]
    if pending:
        yield pending


def _read_parts(path: str, num_bytes: int) -> Iterator[bytes]:
    options = tf.data.Options()
    # The autotuning thread may sleep for a minute after the last part.
    options.autotune.enabled = False
    count = -(-num_bytes // _REQUEST_BYTES)
    size = num_bytes // max(count, 1)
    # Equal parts leave a rest of some bytes: bytes after the last part of a data set are read more
    # than once.
    for first, record_bytes in ((0, size), (count * size, num_bytes - count * size)):
        if record_bytes:
            last = count * size if first == 0 else num_bytes
            parts = tf.data.FixedLengthRecordDataset(
                path,
                record_bytes=record_bytes,
                header_bytes=first,
                footer_bytes=num_bytes - last,
                buffer_size=record_bytes,
            )
            yield from parts.with_options(options).as_numpy_iterator()
