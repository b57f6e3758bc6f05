"""The files of a corpus, wherever they are: a folder, a single file, a zip or a tar archive."""

import os
import struct
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from typing import Protocol

from txl_tf.data.corpora.corpus_member import CorpusMember
from txl_tf.data.corpora.folder_files import FolderFiles
from txl_tf.data.corpora.tar_unpacking import unpack_tar
from txl_tf.data.corpora.zip_files import ZipFiles
from txl_tf.data.downloads.published_file import PublishedFile
from txl_tf.data.text_sources.text_blocks import text_blocks, unreadable
from txl_tf.errors import DataDamagedError, InputMissingError
from txl_tf.file_storage import open_regular_file


class CorpusFiles(Protocol):
    """Gives the files of a corpus as streams."""

    def blocks(self, member: CorpusMember) -> Iterator[bytes]:
        """Yields the bytes of a file in blocks."""


def open_corpus_files(
    path: str, archive: PublishedFile, members: Sequence[CorpusMember], unpack_folder: str | None
) -> CorpusFiles:
    """Finds the files of a corpus, and checks that they are the published ones.

    A zip archive is read where it is. The files of a tar archive cannot be
    read in another order than it has them, so they are unpacked, once.

    Args:
        path: str. A folder with the unpacked files, the archive, or the only
            file of a corpus that has one.
        archive: `PublishedFile`. What the archive must be.
        members: sequence of `CorpusMember`. The files that are needed.
        unpack_folder: optional str. Where to unpack; by default a folder beside
            the archive that has its name and `.unpacked`.

    Returns:
        The files.

    Raises:
        InputMissingError: If the path or a file is missing.
        DataDamagedError: If archive or files are not the published ones.
        StorageError: If something cannot be read or unpacked.
    """
    if os.path.isdir(path):
        return FolderFiles.in_folder(path, members)
    if not os.path.isfile(path):
        what = f"There is no {archive.name}."
        remedy = "Name the archive, a folder with its files, or have it downloaded."
        raise InputMissingError(what, where=path, remedy=remedy)
    if _is_packed(path):
        archive.check(path)
    if _is_zip(path):
        return ZipFiles(path, members)
    if _is_tar(path):
        folder = unpack_folder or f"{path}.unpacked"
        unpack_tar(path, members, folder)
        return FolderFiles.in_folder(folder, members)
    if len(members) == 1 and not _is_packed(path):
        return FolderFiles({members[0].path: path}, members)
    raise DataDamagedError(
        f"This is neither {archive.name} nor a folder with its files.",
        where=path,
        remedy="Name the archive, or a folder with its files.",
    )


def _is_packed(path: str) -> bool:
    try:
        with open_regular_file(path) as file:
            start = file.read(512)
    except OSError as error:
        raise unreadable(path, error) from error
    return start.startswith((b"PK", b"\x1f\x8b")) or start[257:262] == b"ustar"


def _is_zip(path: str) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except (struct.error, ValueError, OverflowError):
        return False


def _is_tar(path: str) -> bool:
    """Whether a file, unpacked as far as is needed, begins like a tar archive."""
    start = b""
    try:
        for block in text_blocks(path):
            start += block
            if len(start) >= tarfile.BLOCKSIZE:
                break
        tarfile.TarInfo.frombuf(start[: tarfile.BLOCKSIZE], tarfile.ENCODING, "surrogateescape")
    except (tarfile.TarError, DataDamagedError, ValueError):
        return False
    return True
