"""Local files opened without following links, and flushed to the disk.

A folder is given by a descriptor (`dir_fd` in `os`), so that no other folder is written if its
path changes meanwhile.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import stat

from txl_tf.errors import OutputExistsError


def flush_to_disk(path: str | os.PathLike[str]) -> None:
    """Forces a file, or the names in a folder, to the disk.

    Without this, a power cut after a rename could leave a complete name with incomplete contents.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_tree_to_disk(folder: str | os.PathLike[str]) -> None:
    """Forces a folder with all its contents to the disk."""
    for parent, _, files in os.walk(folder, topdown=False):
        for name in files:
            flush_to_disk(os.path.join(parent, name))
        flush_to_disk(parent)


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def open_folder(path: str, *, inside: int | None = None) -> int:
    """Opens a folder.

    Inside the folder of the descriptor `inside`, a link raises OutputExistsError instead of being
    followed.
    """
    if inside is None:
        return os.open(path, _FOLDER)
    try:
        return os.open(path, _FOLDER | os.O_NOFOLLOW, dir_fd=inside)
    except OSError as error:
        if _is_link(path, inside):
            raise _in_the_way(path, inside) from error
        raise


def open_for_writing(
    path: str,
    *,
    inside: int | None = None,
    appends: bool = False,
    reads: bool = False,
    must_be_new: bool = False,
    must_exist: bool = False,
) -> int:
    """Opens a regular file for writing, in place; creates it unless `must_exist`.

    `inside` is the descriptor of its folder. Raises OutputExistsError if a link, a device, a pipe
    or a socket is in its place.
    """
    # Without O_NONBLOCK, opening a pipe blocks.
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_RDWR if reads else os.O_WRONLY)
    flags |= os.O_APPEND if appends else 0
    flags |= os.O_EXCL if must_be_new else 0
    flags |= 0 if must_exist else os.O_CREAT
    try:
        descriptor = os.open(path, flags, 0o666, dir_fd=inside)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _in_the_way(path, inside) from error
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise _in_the_way(path, inside)


def lock(descriptor: int, *, waits: bool = False) -> None:
    """Locks a file or folder for this process until its descriptor is closed.

    Raises BlockingIOError if another process has it locked, unless `waits`, and OSError if the
    file system has no such locks.
    """
    fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)


def open_locked(path: str, *, appends: bool = False, reads: bool = False) -> int:
    """Opens a regular file for writing and locks it, see `open_for_writing` and `lock`."""
    descriptor = open_for_writing(path, appends=appends, reads=reads)
    try:
        lock(descriptor)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def replace_file(folder: int, name: str, temporary: str, content: bytes) -> None:
    """Writes a small file that is the old or the new one at every moment.

    A link in its place is replaced, not followed. `temporary` is the name during writing, which a
    killed process may have left.
    """
    remove_file_in(folder, temporary)
    try:
        descriptor = open_for_writing(temporary, inside=folder, must_be_new=True)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            remove_file_in(folder, temporary)
        raise
    os.fsync(folder)


def remove_file_in(folder: int, name: str) -> None:
    """Removes a file, or a link itself, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def remove_folder_in(folder: int | None, name: str) -> None:
    """Removes a folder with its contents, or a link to one, if it exists.

    `folder` is the descriptor of its parent; with `None`, `name` is a path.
    """
    with contextlib.suppress(FileNotFoundError):
        if _is_link(name, folder):
            os.unlink(name, dir_fd=folder)
        else:
            shutil.rmtree(name, dir_fd=folder)


def flush_tree_in(folder: int, name: str) -> None:
    """Forces the folder `name` inside a folder, with all its contents, to the disk."""
    for _, _, files, inside in os.fwalk(name, topdown=False, dir_fd=folder):
        for file in files:
            flush_in(inside, file)
        os.fsync(inside)


def flush_in(folder: int, name: str) -> None:
    """Forces a file of a folder to the disk."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_link(path: str, inside: int | None) -> bool:
    try:
        return stat.S_ISLNK(os.stat(path, dir_fd=inside, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _in_the_way(path: str, inside: int | None) -> OutputExistsError:
    where = path if inside is None else os.path.join(_path_of(inside), path)
    return OutputExistsError(
        "A link, or something else that is no plain file or folder, is in the way; "
        "nothing is written through it.",
        where=where,
        remedy="Move it away.",
    )


def _path_of(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""
