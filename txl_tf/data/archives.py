"""Files of a corpus: unpacked in a folder, in a zip archive or in a tar archive."""

import contextlib
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

from txl_tf.data.downloads import PublishedFile
from txl_tf.errors import DataDamagedError, InputMissingError, StorageError
from txl_tf.storage.files import first_line, open_regular_file
from txl_tf.storage.staging import StagingFolder
from txl_tf.storage.untrusted_files import storage_errors


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusMember:
    """File of a corpus, with its size and SHA-256 if they are known.

    `path` is its path in the archive, `other_paths` are alternatives in a folder. A size or the
    checksum of the archive limits how much is read.
    """

    path: str
    other_paths: tuple[str, ...] = ()
    size_bytes: int | None = None
    sha256: str | None = None

    def check(self, path: str) -> None:
        """Raises DataDamagedError if an unpacked file has another size or checksum, if known."""
        name = self.path.rsplit("/", 1)[-1]
        PublishedFile(
            name=name, url="the archive", size_bytes=self.size_bytes, sha256=self.sha256
        ).check(path)


_BLOCK_BYTES = 1 << 20
# Errors that `tarfile` and `zipfile` raise for content that is no archive.
_DAMAGE = (
    *(EOFError, LookupError, NotImplementedError, OverflowError, RuntimeError, ValueError),
    *(TypeError, lzma.LZMAError, struct.error, tarfile.TarError, zipfile.BadZipFile, zlib.error),
    gzip.BadGzipFile,
)


def _damaged(what: str, path: str) -> DataDamagedError:
    return DataDamagedError(what, where=path, remedy="Get the archive again.")


@contextlib.contextmanager
def _archive_errors(path: str) -> Iterator[None]:
    """Converts the errors of reading a damaged archive to DataDamagedError."""
    try:
        yield
    except (*_DAMAGE, OSError) as error:
        # A zip archive can name an offset before the beginning of the file.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise _damaged(f"The archive cannot be read: {first_line(error)}", path) from error


@dataclasses.dataclass(frozen=True)
class CorpusFiles:
    """Files of a corpus: `paths` on the disk, or in a zip archive, by path in the archive."""

    paths: Mapping[str, str]
    zip_path: str | None = None

    def blocks(self, member: CorpusMember) -> Iterator[bytes]:
        """Yields a file in parts of at most a mebibyte."""
        path = self.paths[member.path]
        where = self.zip_path or path
        with (
            storage_errors("The text file cannot be read", where),
            _archive_errors(where),
            contextlib.ExitStack() as stack,
        ):
            if self.zip_path is None:
                file = stack.enter_context(open_regular_file(path))
            else:
                # `zipfile` verifies checksums.
                archive = stack.enter_context(zipfile.ZipFile(self.zip_path))
                file = stack.enter_context(archive.open(path))
            while block := file.read(_BLOCK_BYTES):
                yield block


def open_corpus_files(
    path: str, archive: PublishedFile, members: Sequence[CorpusMember]
) -> CorpusFiles:
    """Opens a folder with the unpacked files, the archive, or the only file of a corpus.

    A zip archive is read in place. A tar archive allows no random access, so it is unpacked once,
    to its name and `.unpacked`. Raises InputMissingError, DataDamagedError for other files than the
    published ones, or StorageError.
    """
    if os.path.isdir(path):
        return _in_folder(path, members)
    if not os.path.isfile(path):
        what = f"There is no {archive.name}."
        remedy = "Name the archive, a folder with its files, or have it downloaded."
        raise InputMissingError(what, where=path, remedy=remedy)
    if len(members) == 1 and os.path.getsize(path) == members[0].size_bytes:
        members[0].check(path)
        return CorpusFiles({members[0].path: path})
    archive.check(path)
    if archive.name.endswith(".zip"):
        return _in_zip(path, members)
    folder = f"{path}.unpacked"
    if not os.path.isdir(folder):
        _unpack_tar(path, members, folder)
    return _in_folder(folder, members)


def _in_folder(folder: str, members: Sequence[CorpusMember]) -> CorpusFiles:
    paths = {}
    for member in members:
        names = (member.path, *member.other_paths)
        candidates = [os.path.join(folder, *name.split("/")) for name in names]
        found = next((path for path in candidates if os.path.isfile(path)), None)
        if found is None:
            raise InputMissingError(
                f"The folder has no {' and no '.join(names)}.",
                where=folder,
                remedy="Name the folder with all unpacked files, or the archive.",
            )
        member.check(found)
        paths[member.path] = found
    return CorpusFiles(paths)


def _in_zip(path: str, members: Sequence[CorpusMember]) -> CorpusFiles:
    with (
        storage_errors("The archive cannot be read", path),
        _archive_errors(path),
        zipfile.ZipFile(path) as archive,
    ):
        found = set(archive.namelist())
    for member in members:
        if member.path not in found:
            raise _damaged(f"The archive has no {member.path}.", path)
    return CorpusFiles({member.path: member.path for member in members}, path)


def _unpack_tar(path: str, members: Sequence[CorpusMember], folder: str) -> None:
    """Unpacks the members into a new folder, which gets its name when it is complete.

    Only the given names are used as paths; other entries, links and devices are ignored.
    """
    missing = {member.path: member for member in members}
    try:
        # As a stream: seeking backwards in a compressed archive restarts decompression.
        with (
            StagingFolder(folder, last_file="") as staging,
            _archive_errors(path),
            tarfile.open(path, "r|*") as archive,
        ):
            for info in archive:
                member = missing.pop(info.name.removeprefix("./"), None)
                if member is None:
                    continue
                source = archive.extractfile(info) if info.isreg() else None
                if source is None:
                    what = f"{member.path} is no file, but a link or something else."
                    raise _damaged(what, path)
                if member.size_bytes not in (None, info.size):
                    what = (
                        f"{member.path} must have {member.size_bytes} bytes, but has {info.size}."
                    )
                    raise _damaged(what, path)
                target = os.path.join(staging.path, *member.path.split("/"))
                os.makedirs(os.path.dirname(target), exist_ok=True)
                with open(target, "xb") as file:
                    shutil.copyfileobj(source, file, _BLOCK_BYTES)
                    if file.tell() != info.size:
                        raise EOFError(f"it ends after {file.tell()} of {info.size} bytes")
                member.check(target)
                if not missing:
                    break
            if missing:
                raise _damaged(f"The archive has no {min(missing)}.", path)
            staging.publish()
    except OSError as error:
        raise StorageError(
            f"Unpacking failed: {error.strerror or error}",
            where=folder,
            remedy="Check free space and permissions, or name another folder.",
        ) from error
