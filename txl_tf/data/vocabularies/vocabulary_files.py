"""Reads the files of a vocabulary, whoever keeps them."""

from txl_tf.file_storage import list_folder, read_file
from txl_tf.untrusted_files import MAX_DESCRIPTION_BYTES, listed_file

_REMEDY = "Restore it from a copy, or remove it if it is no file of the vocabulary."


def read_vocabulary_files(folder: str, prefix: str = "") -> dict[str, bytes]:
    """Reads all files of a folder that belong to a vocabulary.

    Args:
        folder: str. The folder, also a remote one.
        prefix: str. How the names of the files begin. Hidden ones are what a
            process that was killed has left, and never read.

    Returns:
        Dict of name to content; empty where there is no folder.

    Raises:
        DataDamagedError: If one of them is no regular file, or larger than a
            vocabulary is.
        OSError: If one cannot be read.
    """
    names = [name for name in list_folder(folder) if name.startswith(prefix) and name[:1] != "."]
    return {
        name: read_file(
            listed_file(folder, name, listed_in=folder, remedy=_REMEDY),
            max_bytes=MAX_DESCRIPTION_BYTES,
        )
        for name in names
    }
