"""Access to the files of a corpus in a folder, a zip archive or a tar archive."""

import errno
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, Self

from txl_tf.data.corpora.tar_unpacking import CorpusMember, unpack_tar
from txl_tf.data.partial_download import PublishedFile
from txl_tf.data.text_files import text_blocks, unreadable
from txl_tf.errors import DataDamagedError, InputMissingError
from txl_tf.storage.files import open_regular_file

_BLOCK_BYTES = 1 << 20


class FolderFiles:
    """Unpacked files, checked when they are found.

    Args:
        paths: mapping of the path of a member in the archive to its file.
        members: sequence of `CorpusMember`. The files that are needed.

    Raises:
        DataDamagedError: If a file is not the published one.
    """

    def __init__(self, paths: Mapping[str, str], members: Sequence[CorpusMember]) -> None:
        self._paths = dict(paths)
        for member in members:
            member.check(self._paths[member.path])

    @classmethod
    def in_folder(cls, folder: str, members: Sequence[CorpusMember]) -> Self:
        """Finds the files in a folder.

        Args:
            folder: str. The folder.
            members: sequence of `CorpusMember`. The files that are needed.

        Returns:
            The files.

        Raises:
            InputMissingError: If a file is missing.
            DataDamagedError: If a file is not the published one.
        """
        paths = {}
        for member in members:
            candidates = [os.path.join(folder, *path.split("/")) for path in member.paths]
            found = next((path for path in candidates if os.path.isfile(path)), None)
            if found is None:
                raise InputMissingError(
                    f"The folder has no {' and no '.join(member.paths)}.",
                    where=folder,
                    remedy="Name the folder with all unpacked files, or the archive.",
                )
            paths[member.path] = found
        return cls(paths, members)

    def blocks(self, member: CorpusMember) -> Iterator[bytes]:
        """Yields the bytes of a file.

        Args:
            member: `CorpusMember`. The file.

        Yields:
            Blocks of at most a mebibyte.

        Raises:
            StorageError: If the file cannot be read.
        """
        path = self._paths[member.path]
        try:
            with open_regular_file(path) as file:
                while block := file.read(_BLOCK_BYTES):
                    yield block
        except OSError as error:
            raise unreadable(path, error) from error


_REMEDY = "Get the archive again."
# Other methods may ask for gigabytes of memory before there is a byte.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_DAMAGE = (
    EOFError,
    LookupError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


class ZipFiles:
    """Files in a zip archive, whose checksums are verified while they are read.

    Args:
        path: str. The archive.
        members: sequence of `CorpusMember`. The files that are needed.

    Raises:
        DataDamagedError: If the archive is damaged, or has not the files, or
            has more in them than they can be.
    """

    def __init__(self, path: str, members: Sequence[CorpusMember]) -> None:
        self._path = path
        try:
            with zipfile.ZipFile(path) as archive:
                found = {info.filename: info for info in archive.infolist()}
        except (*_DAMAGE, OSError) as error:
            raise self._damaged(f"The archive cannot be read: {error}") from error
        for member in members:
            if member.path not in found:
                raise self._damaged(f"The archive has no {member.path}.")
            if found[member.path].compress_type not in _METHODS:
                raise self._damaged(f"{member.path} is neither stored nor deflated.")
            size = found[member.path].file_size
            if size > member.max_bytes or member.size_bytes not in (None, size):
                expected = member.size_bytes or f"at most {member.max_bytes}"
                raise self._damaged(f"{member.path} must have {expected} bytes, but has {size}.")

    def blocks(self, member: CorpusMember) -> Iterator[bytes]:
        """Yields the bytes of a file.

        Args:
            member: `CorpusMember`. The file.

        Yields:
            Blocks of at most a mebibyte.

        Raises:
            DataDamagedError: If the archive is damaged.
            StorageError: If it cannot be read.
        """
        try:
            # No more than the size that was checked is ever decompressed.
            with zipfile.ZipFile(self._path) as archive, archive.open(member.path) as file:
                while block := file.read(_BLOCK_BYTES):
                    yield block
        except _DAMAGE as error:
            raise self._damaged(f"{member.path} cannot be read: {error}") from error
        except OSError as error:
            if error.errno == errno.EINVAL:  # a place before the beginning of the file
                raise self._damaged(f"{member.path} is nowhere in the archive.") from error
            raise unreadable(self._path, error) from error

    def _damaged(self, what: str) -> DataDamagedError:
        return DataDamagedError(what, where=self._path, remedy=_REMEDY)


class CorpusFiles(Protocol):
    """Interface to the files of a corpus as streams."""

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
