"""Files of a corpus in a folder, or in a zip or tar archive, which is unpacked beside itself."""

import contextlib
import dataclasses
import errno
import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from typing import IO, Any

from txl_tf.data.sources.downloads import PublishedFile
from txl_tf.data.sources.file_kinds import decoded_content, kind_of
from txl_tf.errors import DataDamagedError, InputMissingError, JobError, StorageError, first_line
from txl_tf.storage.files import open_regular_file
from txl_tf.storage.staging import StagingFolder

_BLOCK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusMember(PublishedFile):
    """File of a corpus.

    `name` is its path in the archive, and `other_paths` are further paths that it may have in a
    folder. The size of the file, or the checksum of the archive, limits how much is read.
    """

    url: str = "the archive"
    other_paths: tuple[str, ...] = ()


def unpacked_files(path: str, archive: PublishedFile, members: Sequence[CorpusMember]) -> list[str]:
    """Returns the paths of the members after a check of their size and SHA-256, if known.

    `path` is the archive, a folder with the unpacked files, or the only file. An archive is
    unpacked once, into a folder beside it with the suffix `.unpacked`. Raises InputMissingError for
    a missing file, DataDamagedError for a file that is not the published one, and StorageError.
    """
    if os.path.isdir(path):
        return _in_folder(path, members)
    if not os.path.isfile(path):
        raise InputMissingError(
            f"There is neither {archive.name} nor a folder with its files.",
            where=path,
            remedy="Give the path of the archive or of the folder, or download the archive.",
        )
    if len(members) == 1 and os.path.getsize(path) == members[0].size_bytes:
        members[0].check(path)
        return [path]
    archive.check(path)
    folder = f"{path}.unpacked"
    if not os.path.isdir(folder):
        _unpack(path, members, folder)
    return _in_folder(folder, members)


def _in_folder(folder: str, members: Sequence[CorpusMember]) -> list[str]:
    paths = []
    for member in members:
        names = (member.name, *member.other_paths)
        candidates = [os.path.join(folder, *name.split("/")) for name in names]
        path = next(filter(os.path.isfile, candidates), None)
        if path is None:
            raise InputMissingError(
                f"The folder must have the file {' or '.join(names)}.",
                where=folder,
                remedy="Name the folder with all unpacked files, or the archive.",
            )
        member.check(path)
        paths.append(path)
    return paths


def _unpack(path: str, members: Sequence[CorpusMember], folder: str) -> None:
    """Unpacks the members into a new folder, which gets its name when it is complete.

    Only the names of the members become paths. Other entries, links and devices are ignored.
    """
    sizes = {member.name: member.size_bytes for member in members}
    with archive_errors(path), StagingFolder(folder, last_file="") as staging:
        for name, size_bytes, source in archive_files(path):
            if name in sizes and sizes[name] in (None, size_bytes):
                target = os.path.join(staging.path, *name.split("/"))
                os.makedirs(os.path.dirname(target), exist_ok=True)
                with open(target, "xb") as file:
                    shutil.copyfileobj(source, file, _BLOCK_BYTES)
        try:
            _in_folder(staging.path, members)
        except InputMissingError as error:
            raise DataDamagedError(
                error.what.replace("The folder", "The archive"),
                where=path,
                remedy="Get the archive again.",
            ) from error
        staging.publish()


def archive_files(path: str) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Yields name, size in bytes and content of the files of a zip or tar archive.

    A content can be read only until the next one is asked for. The caller reads within
    `archive_errors`.
    """
    with open_regular_file(path) as file:
        start, blocks = decoded_content(file, path)
        if kind_of(start) == "zip":
            # `zipfile` compares checksums while it reads.
            with zipfile.ZipFile(file) as archive:
                for entry in archive.infolist():
                    if not entry.is_dir():
                        with archive.open(entry) as content:
                            yield entry.filename, entry.file_size, content
            return
        # Read as a stream, because seeking backwards in a compressed archive starts decompression
        # at the beginning.
        reader: Any = _BlockReader(blocks)
        with tarfile.open(fileobj=reader, mode="r|", bufsize=_BLOCK_BYTES) as stream:
            for info in stream:
                if info.isreg() and (source := stream.extractfile(info)) is not None:
                    yield info.name.removeprefix("./"), info.size, source


class _BlockReader:
    """Binary file whose content is a sequence of blocks."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._rest = blocks, b""

    def read(self, size: int) -> bytes:
        while len(self._rest) < size and (block := next(self._blocks, b"")):
            self._rest += block
        part, self._rest = self._rest[:size], self._rest[size:]
        return part


@contextlib.contextmanager
def archive_errors(path: str) -> Iterator[None]:
    """Turns the errors of reading an archive into DataDamagedError or StorageError."""
    try:
        yield
    except JobError:
        raise
    # Every format has its own errors for damaged archives.
    except Exception as error:
        what = f"The archive cannot be read: {first_line(error)}"
        # An OSError without a number, or with EINVAL, is damage too.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise StorageError(
                what, where=path, remedy="Check free space and permissions."
            ) from error
        raise DataDamagedError(what, where=path, remedy="Get the archive again.") from error
