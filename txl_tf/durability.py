"""Makes sure that what was written is on the disk."""

import os


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
