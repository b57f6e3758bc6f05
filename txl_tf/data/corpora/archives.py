"""Access to the files of a corpus in a folder, a zip archive or a tar archive."""

import dataclasses
import errno
import gzip
import lzma
import os
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Self, cast

from txl_tf.data.partial_download import PublishedFile
from txl_tf.data.text_files import UNREADABLE
from txl_tf.errors import DataDamagedError, InputMissingError, StorageError
from txl_tf.storage.files import open_regular_file, remove_file
from txl_tf.storage.local_files import flush_to_disk, open_for_writing
from txl_tf.storage.untrusted_files import storage_errors


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusMember:
    """File in the archive of a corpus, with its size and SHA-256 if they are known.

    `path` is its path in the archive, `other_paths` are alternatives in a folder, and `max_bytes`
    limits how much is read.
    """

    path: str
    other_paths: tuple[str, ...] = ()
    max_bytes: int
    size_bytes: int | None = None
    sha256: str | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """All its paths, the one in the archive first."""
        return (self.path, *self.other_paths)

    def problem_of_size(self, size: int) -> str | None:
        """Describes why the size declared by an archive is wrong, or returns `None`."""
        if size <= self.max_bytes and self.size_bytes in (None, size):
            return None
        expected = self.size_bytes or f"at most {self.max_bytes}"
        return f"{self.path} must have {expected} bytes, but has {size}."

    def check(self, path: str) -> None:
        """Raises DataDamagedError if an unpacked file has another size or checksum, if known."""
        name = self.path.rsplit("/", 1)[-1]
        file = PublishedFile(name=name, urls=(), size_bytes=self.size_bytes, sha256=self.sha256)
        file.check(path)


_BLOCK_BYTES = 1 << 20
# Errors that `tarfile` and `zipfile` raise for content that is no archive.
_DAMAGE = (
    *(EOFError, LookupError, NotImplementedError, OverflowError, RuntimeError, ValueError),
    *(TypeError, lzma.LZMAError, struct.error, tarfile.TarError, zipfile.BadZipFile, zlib.error),
)


def unpack_tar(path: str, members: Sequence[CorpusMember], folder: str) -> None:
    """Unpacks the members into a folder, made if needed, unless they are there.

    Only the given names are used as paths; other entries, links and devices are ignored. A file
    gets its name when it is complete. Raises DataDamagedError for a damaged archive, or a member
    that is missing, no file or too large; StorageError if reading or writing fails.
    """
    targets = {member.path: os.path.join(folder, *member.path.split("/")) for member in members}
    missing = {
        member.path: member for member in members if not os.path.isfile(targets[member.path])
    }
    if not missing:
        return
    try:
        # As a stream: seeking backwards in a compressed archive restarts decompression.
        with tarfile.open(path, "r|*") as archive:
            for info in archive:
                name = info.name.removeprefix("./")
                if name in missing:
                    _unpack(archive, info, missing.pop(name), targets[name], path)
                if not missing:
                    break
    except (*_DAMAGE, gzip.BadGzipFile) as error:
        raise _damaged(f"The archive cannot be read: {error}", path) from error
    except OSError as error:
        raise StorageError(
            f"Unpacking failed: {error.strerror or error}",
            where=folder,
            remedy="Check free space and permissions, or name another folder.",
        ) from error
    if missing:
        raise _damaged(f"The archive has no {min(missing)}.", path)


def _unpack(
    archive: tarfile.TarFile, info: tarfile.TarInfo, member: CorpusMember, target: str, path: str
) -> None:
    if not info.isreg():
        raise _damaged(f"{member.path} is no file, but a link or something else.", path)
    if problem := member.problem_of_size(info.size):
        raise _damaged(problem, path)
    source = cast(IO[bytes], archive.extractfile(info))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    # Another process may unpack the same archive.
    partial = f"{target}.{os.getpid()}.partial"
    try:
        remove_file(partial)
        with source, os.fdopen(open_for_writing(partial, must_be_new=True), "wb") as file:
            shutil.copyfileobj(source, file, _BLOCK_BYTES)
            if file.tell() != info.size:
                raise EOFError(f"it ends after {file.tell()} of {info.size} bytes of a file")
        member.check(partial)
        flush_to_disk(partial)
        os.replace(partial, target)
    except BaseException:
        remove_file(partial)
        raise


def _damaged(what: str, path: str) -> DataDamagedError:
    return DataDamagedError(what, where=path, remedy="Get the archive again.")


class FolderFiles:
    """Unpacked files by path in the archive, checked against size and SHA-256 when found."""

    def __init__(self, paths: Mapping[str, str], members: Sequence[CorpusMember]) -> None:
        self._paths = dict(paths)
        for member in members:
            member.check(self._paths[member.path])

    @classmethod
    def in_folder(cls, folder: str, members: Sequence[CorpusMember]) -> Self:
        """Finds the files in a folder; raises InputMissingError if one is missing."""
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
        path = self._paths[member.path]
        with storage_errors(UNREADABLE, path), open_regular_file(path) as file:
            while block := file.read(_BLOCK_BYTES):
                yield block


class ZipFiles:
    """Files in a zip archive, which verifies their checksums while they are read.

    Raises DataDamagedError if the archive is damaged, or a member is missing or too large.
    """

    def __init__(self, path: str, members: Sequence[CorpusMember]) -> None:
        self._path = path
        try:
            with zipfile.ZipFile(path) as archive:
                found = {info.filename: info for info in archive.infolist()}
        except (*_DAMAGE, OSError) as error:
            raise _damaged(f"The archive cannot be read: {error}", path) from error
        for member in members:
            if member.path not in found:
                raise _damaged(f"The archive has no {member.path}.", path)
            if problem := member.problem_of_size(found[member.path].file_size):
                raise _damaged(problem, path)

    def blocks(self, member: CorpusMember) -> Iterator[bytes]:
        with storage_errors(UNREADABLE, self._path):
            try:
                # `zipfile` decompresses at most the size that was checked.
                with zipfile.ZipFile(self._path) as archive, archive.open(member.path) as file:
                    while block := file.read(_BLOCK_BYTES):
                        yield block
            except _DAMAGE as error:
                what = f"{member.path} cannot be read: {error}"
                raise _damaged(what, self._path) from error
            except OSError as error:
                if error.errno != errno.EINVAL:  # an offset before the beginning of the file
                    raise
                what = f"{member.path} is nowhere in the archive."
                raise _damaged(what, self._path) from error


CorpusFiles = FolderFiles | ZipFiles
"""Files of a corpus, whose `blocks` yields a file in parts of at most a mebibyte."""


def open_corpus_files(
    path: str, archive: PublishedFile, members: Sequence[CorpusMember], unpack_folder: str | None
) -> CorpusFiles:
    """Opens a folder with the unpacked files, the archive, or the only file of a corpus.

    A zip archive is read in place. A tar archive allows no random access, so it is unpacked once,
    by default to its name and `.unpacked`. Raises InputMissingError, DataDamagedError for other
    files than the published ones, or StorageError.
    """
    if os.path.isdir(path):
        return FolderFiles.in_folder(path, members)
    if not os.path.isfile(path):
        what = f"There is no {archive.name}."
        remedy = "Name the archive, a folder with its files, or have it downloaded."
        raise InputMissingError(what, where=path, remedy=remedy)
    is_zip, is_tar = _is_zip(path), _is_tar(path)
    if is_zip or is_tar:
        archive.check(path)
    if is_zip:
        return ZipFiles(path, members)
    if is_tar:
        folder = unpack_folder or f"{path}.unpacked"
        unpack_tar(path, members, folder)
        return FolderFiles.in_folder(folder, members)
    if len(members) == 1:
        return FolderFiles({members[0].path: path}, members)
    raise DataDamagedError(
        f"This is neither {archive.name} nor a folder with its files.",
        where=path,
        remedy="Name the archive, or a folder with its files.",
    )


def _is_zip(path: str) -> bool:
    with storage_errors(UNREADABLE, path), open_regular_file(path) as file:
        return file.read(2) == b"PK"


def _is_tar(path: str) -> bool:
    try:
        return tarfile.is_tarfile(path)
    except (*_DAMAGE, OSError):
        return False
