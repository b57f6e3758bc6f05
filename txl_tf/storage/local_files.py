"""Local files opened without following links, and flushed to the disk.

A folder is given by a descriptor, as `os` calls it `dir_fd`: whatever becomes of
its path meanwhile, no other folder is written into.
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

    A rename is only as safe as what it renames: without this, a power cut
    could leave a complete name with incomplete contents.

    Args:
        path: path of a file or folder.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_tree_to_disk(folder: str | os.PathLike[str]) -> None:
    """Forces a folder with everything in it to the disk.

    Args:
        folder: path of the folder.
    """
    for parent, _, files in os.walk(folder, topdown=False):
        for name in files:
            flush_to_disk(os.path.join(parent, name))
        flush_to_disk(parent)


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def open_folder(path: str, *, inside: int | None = None) -> int:
    """Opens a folder.

    Args:
        path: str. The folder.
        inside: optional int. Descriptor of the folder that `path` is a name
            in. With it a link is refused, without it one is followed.

    Raises:
        OutputExistsError: If a link is in its place and `inside` is given.
        OSError: If there is no such folder.
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
    """Opens a regular file for writing, in place.

    Args:
        path: str. The file; made if it is not there.
        inside: optional int. Descriptor of the folder that `path` is a name in.
        appends: bool. Whether all that is written goes to its end.
        reads: bool. Whether it is read, too.
        must_be_new: bool. Whether one that is there is an error.
        must_exist: bool. Whether one that is not there is an error.

    Raises:
        OutputExistsError: If a link, a device, a pipe or a socket is in its
            place.
        OSError: If it cannot be opened.
    """
    # Without O_NONBLOCK the opening of a pipe waits.
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
    """Locks a file or folder until its descriptor is closed, for this process alone.

    Args:
        descriptor: int. The open file or folder.
        waits: bool. Whether to wait for another process that has it locked.

    Raises:
        BlockingIOError: If another process has it locked, unless `waits`.
        OSError: If the file system has no such locks.
    """
    fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)


def open_locked(path: str, *, appends: bool = False, reads: bool = False) -> int:
    """Opens a regular file for writing, and locks it; see `open_for_writing`.

    Raises:
        BlockingIOError: If another process has it locked.
        OSError: If it cannot be opened.
    """
    descriptor = open_for_writing(path, appends=appends, reads=reads)
    try:
        lock(descriptor)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def replace_file(folder: int, name: str, temporary: str, content: bytes) -> None:
    """Writes a small file that is the old or the new one at every moment.

    Args:
        folder: int. Descriptor of the folder.
        name: str. The file; a link in its place is replaced, not followed.
        temporary: str. Name to write under; what a killed process left there
            is removed.
        content: bytes. All of it.

    Raises:
        OSError: If it cannot be written; the old file is untouched.
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
    """Removes a file, or a link itself; one that is not there is no error."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def remove_folder_in(folder: int | None, name: str) -> None:
    """Removes a folder with all in it, or a link to one, which is not followed.

    Args:
        folder: optional int. Descriptor of the folder that it is in.
        name: str. Its name, or its path where `folder` is None. One that is
            not there is no error.
    """
    with contextlib.suppress(FileNotFoundError):
        if _is_link(name, folder):
            os.unlink(name, dir_fd=folder)
        else:
            shutil.rmtree(name, dir_fd=folder)


def flush_tree_in(folder: int, name: str) -> None:
    """Forces a folder with everything in it to the disk.

    Args:
        folder: int. Descriptor of the folder that it is in.
        name: str. Its name.
    """
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
