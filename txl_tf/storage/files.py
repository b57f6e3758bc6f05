"""Files on a local disk, or in a store that TensorFlow reads (`gs://`, `ram://`).

A path with `://` is remote. Local paths never need TensorFlow. Both kinds of paths raise `OSError`
for failures, so callers need not distinguish them. A path that must be a regular file but is not,
or a file that is too large, raises `DataDamagedError`.
"""

import contextlib
import errno
import functools
import hashlib
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from typing import IO

from txl_tf.errors import DataDamagedError, first_line
from txl_tf.imports import tensorflow as tf

RESTORE_REMEDY = "Restore the file from a copy."
_BLOCK_BYTES = 4 << 20
_LISTING_TRIES = 3
# How far TensorFlow's client for stores reads ahead is a setting of the process, by default 64 MiB.
# The rows of a training run begin everywhere in a data set, and at first each row needs little. So
# the read-ahead is short here, and whole files are read with large requests.
_READ_SETTINGS = {
    # This holds at least one whole record of 4096 tokens after the place where a row begins.
    "GCS_READAHEAD_BUFFER_SIZE_BYTES": str(49 << 10),
    # The cache of the TPU build would read a large file with one request per read-ahead block.
    "GCS_READ_CACHE_MAX_SIZE_MB": "0",
}
_REQUEST_BYTES = 8 << 20


def no_check() -> None:
    """Allows every change: the check of a writer that has no lock."""


def is_remote(path: str | os.PathLike[str]) -> bool:
    """True if a path needs TensorFlow's file systems."""
    return "://" in os.fspath(path)


def file_sha256(path: str, progress: Callable[[int], None] | None = None) -> str:
    """Returns the hexadecimal SHA-256 of a file; `progress` gets the size of each block."""
    digest = hashlib.sha256()
    for block in file_blocks(path):
        digest.update(block)
        if progress is not None:
            progress(len(block))
    return digest.hexdigest()


def file_blocks(path: str) -> Iterator[bytes]:
    """Yields the blocks of a file in order. Raises DataDamagedError if it is not a regular file."""
    with _as_os_errors(path):
        if is_remote(path):
            yield from _read_store_blocks(path, file_bytes(path))
            return
        with open_regular_file(path) as file:
            while block := file.read(_BLOCK_BYTES):
                yield block


def read_file(path: str, *, max_bytes: int | None = None) -> bytes:
    """Reads a small file; DataDamagedError if it is not regular or larger than `max_bytes`."""
    if max_bytes is not None and file_bytes(path) > max_bytes:
        raise DataDamagedError(
            f"The file is larger than {max_bytes:,} bytes, the limit for files of its kind.",
            where=path,
            remedy=RESTORE_REMEDY,
        )
    with (
        _as_os_errors(path),
        tf.io.gfile.GFile(path, "rb") if is_remote(path) else open_regular_file(path) as file,
    ):
        # Blocks are read up to the end, because the file may have grown since its size was read.
        return b"".join(iter(functools.partial(file.read, _BLOCK_BYTES), b""))


def write_file(path: str, content: bytes, check: Callable[[], None] = no_check) -> None:
    """Writes a small file so that its path has the old or the new content at every moment.

    The order of the steps protects the file:

    1. `check` raises an error if this process may no longer write.
    2. The content is written under a temporary name. A kill leaves the old file, and beside it the
       temporary one, which `WritableFolder.remove_temporaries` removes.
    3. The temporary file is flushed. Otherwise a power cut after the rename could leave the new
       name with incomplete content.
    4. `check` is called again, because the right to write may have been lost meanwhile.
    5. The rename replaces the old file in one step.
    6. The folder is flushed. Otherwise a power cut could undo the rename after this function has
       returned.
    """
    check()
    folder, name = os.path.split(path)
    # A local lock excludes a second writer. In a store two may write at once for a moment, and
    # must not rename each other's file.
    unique = f".{uuid.uuid4().hex[:12]}" if is_remote(path) else ""
    temporary = os.path.join(folder, f".{name}{unique}.tmp")
    try:
        with open_new(temporary) as file:
            file.write(content)
        flush_to_disk(temporary)
        check()
        rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            remove_file(temporary)
        raise
    flush_to_disk(folder or ".")


@contextlib.contextmanager
def open_new(path: str) -> Iterator[IO[bytes]]:
    """Opens a file for writing; a file that exists is emptied."""
    with (
        _as_os_errors(path),
        tf.io.gfile.GFile(path, "wb") if is_remote(path) else open(path, "wb") as file,
    ):
        yield file


def rename(source: str, target: str) -> None:
    """Renames a file, and replaces a file of the new name. Local folders can be renamed too."""
    if not is_remote(source):
        os.replace(source, target)
        return
    with _as_os_errors(source):
        tf.io.gfile.rename(source, target, overwrite=True)


def path_exists(path: str) -> bool:
    """True if there is a file or folder at the path."""
    if not is_remote(path):
        return os.path.lexists(path)
    with _as_os_errors(path):
        return tf.io.gfile.exists(path)


def file_bytes(path: str) -> int:
    """Returns the size of a file, in bytes; FileNotFoundError if it is missing."""
    with _as_os_errors(path):
        if not is_remote(path):
            return os.stat(path).st_size
        return tf.io.gfile.stat(path).length


def list_folder(folder: str) -> list[str]:
    """Returns the sorted names in a folder; an empty list if there is no folder.

    Raises OSError if the folder cannot be listed.
    """
    if not is_remote(folder):
        try:
            return sorted(os.listdir(folder or "."))
        except FileNotFoundError:
            return []
    with _as_os_errors(folder):
        # `listdir` reports several failures as "not found", so the folder itself is asked for
        # before it counts as empty. In a store, a file of this name counts as an empty folder.
        for _ in range(_LISTING_TRIES):
            try:
                # Object stores mark a folder with a slash at the end of its name.
                return sorted({name.rstrip("/") for name in tf.io.gfile.listdir(folder)})
            except tf.errors.NotFoundError:
                if not is_folder(folder):
                    return []
    raise OSError(errno.EIO, "The folder exists but cannot be listed.", folder)


def is_folder(path: str) -> bool:
    """True if there is a folder at the path; OSError if a store cannot tell."""
    if not is_remote(path):
        return os.path.isdir(path)
    with _as_os_errors(path):
        try:
            # `tf.io.gfile.isdir` would return False for every failure.
            return bool(tf.io.gfile.stat(path).is_directory)
        except tf.errors.NotFoundError:
            return False


def make_folder(folder: str) -> None:
    """Creates a folder and its parents if they are missing, and flushes local ones to the disk."""
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
        if not os.path.isdir(folder):  # a folder was made by another process
            raise
    flush_to_disk(parent)


def remove_file(path: str) -> None:
    """Removes a file if it exists."""
    with contextlib.suppress(FileNotFoundError):
        if not is_remote(path):
            os.unlink(path)
            return
        with _as_os_errors(path):
            tf.io.gfile.remove(path)


def remove_folder(folder: str) -> None:
    """Removes a folder and its contents if it exists; of a link to a folder, only the link."""
    with contextlib.suppress(FileNotFoundError):
        if not is_remote(folder):
            remove = os.unlink if os.path.islink(folder) else shutil.rmtree
            remove(folder)
            return
        with _as_os_errors(folder):
            try:
                tf.io.gfile.rmtree(folder)
            except tf.errors.PermissionDeniedError:
                # TensorFlow raises this error also for files that are gone but still listed.
                if _has_files(folder):
                    raise


def _has_files(folder: str) -> bool:
    # Searches at every depth, for files that are there and not only listed.
    paths = [os.path.join(folder, name) for name in list_folder(folder)]
    return any(_has_files(path) if is_folder(path) else path_exists(path) for path in paths)


def open_regular_file(path: str | os.PathLike[str]) -> IO[bytes]:
    """Opens a local file, following links; DataDamagedError for a pipe, a device or a folder."""
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise DataDamagedError(
        "The file must be a regular file, not a folder, a device or a pipe.",
        where=os.fspath(path),
        remedy="Name a regular file, or restore the file from a copy.",
    )


@contextlib.contextmanager
def _as_os_errors(path: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not is_remote(path) or not isinstance(error, tf.errors.OpError):
            raise
        numbers = {
            tf.errors.NotFoundError: errno.ENOENT,
            tf.errors.ResourceExhaustedError: errno.ENOSPC,
            tf.errors.PermissionDeniedError: errno.EACCES,
            tf.errors.UnauthenticatedError: errno.EACCES,
        }
        # The number makes `OSError` an instance of a subclass, such as FileNotFoundError.
        number = numbers.get(type(error), errno.EIO)
        raise OSError(number, first_line(error), path) from error


def flush_to_disk(path: str | os.PathLike[str]) -> None:
    """Forces the content of a local file, or the names in a local folder, to the disk.

    A store keeps every object that it has accepted, so a remote path needs nothing.
    """
    if is_remote(path):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_tree_to_disk(folder: str | os.PathLike[str]) -> None:
    """Forces a local folder and everything below it to the disk."""
    for parent, _, files in os.walk(folder, topdown=False):
        for name in files:
            flush_to_disk(os.path.join(parent, name))
        flush_to_disk(parent)


def set_read_ahead() -> None:
    """Sets how far this process and its children read ahead in a store, unless it is set already.

    TensorFlow reads these settings when it is imported.
    """
    for name, value in _READ_SETTINGS.items():
        os.environ.setdefault(name, value)


def _read_store_blocks(path: str, num_bytes: int) -> Iterator[bytes]:
    """Yields the blocks of a file in a store in order, and requests each as a whole.

    TensorFlow's file object would request half a megabyte at a time. Raises `tf.errors.OpError` if
    the file cannot be read or has another size than `num_bytes`.
    """
    options = tf.data.Options()
    # The comment at the same option in `TrainingSegments` tells why.
    options.autotune.enabled = False
    count = -(-num_bytes // _REQUEST_BYTES)
    size = num_bytes // max(count, 1)
    # First `count` blocks of equal size, then the rest as a second data set: bytes that are left
    # over after the last record of a data set would be read more than once.
    for first, record_bytes in ((0, size), (count * size, num_bytes - count * size)):
        if record_bytes:
            last = count * size if first == 0 else num_bytes
            blocks = tf.data.FixedLengthRecordDataset(
                path,
                record_bytes=record_bytes,
                header_bytes=first,
                footer_bytes=num_bytes - last,
                buffer_size=record_bytes,
            )
            yield from blocks.with_options(options).as_numpy_iterator()
