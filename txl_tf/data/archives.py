"""Files of a corpus: in a folder, or in a zip or tar archive, which is unpacked beside itself."""

import dataclasses
import errno
import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from typing import IO

from txl_tf.data.downloads import PublishedFile
from txl_tf.errors import DataDamagedError, InputMissingError, JobError, StorageError
from txl_tf.storage.files import first_line
from txl_tf.storage.staging import StagingFolder

_BLOCK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusMember(PublishedFile):
    """File of a corpus: `name` is its path in the archive, `other_paths` are paths in a folder.

    A size or the checksum of the archive limits how much is read.
    """

    url: str = "the archive"
    other_paths: tuple[str, ...] = ()


def unpacked_files(path: str, archive: PublishedFile, members: Sequence[CorpusMember]) -> list[str]:
    """Returns the paths of the members, verified as far as their size and SHA-256 are known.

    `path` is the archive, a folder with the unpacked files, or the only file. An archive is
    unpacked once, to its name and `.unpacked`. Raises InputMissingError, DataDamagedError for
    other files than the published ones, or StorageError.
    """
    if os.path.isdir(path):
        return _in_folder(path, members)
    if not os.path.isfile(path):
        what = f"There is neither {archive.name} nor a folder with its files."
        remedy = "Give the path of the archive or of the folder, or download the archive."
        raise InputMissingError(what, where=path, remedy=remedy)
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
        found = next((path for path in candidates if os.path.isfile(path)), None)
        if found is None:
            raise InputMissingError(
                f"The folder must have the file {' or '.join(names)}.",
                where=folder,
                remedy="Name the folder with all unpacked files, or the archive.",
            )
        member.check(found)
        paths.append(found)
    return paths


def _unpack(path: str, members: Sequence[CorpusMember], folder: str) -> None:
    """Unpacks the members into a new folder, which gets its name when it is complete.

    Only the given names are used as paths; other entries, links and devices are ignored.
    """
    missing = {member.name: member for member in members}
    try:
        with StagingFolder(folder, last_file="") as staging:
            for name, size_bytes, source in _entries(path):
                member = missing.pop(name, None)
                if member is None:
                    continue
                if source is None:
                    raise ValueError(f"{name} must be a file, not a link, folder or device")
                if member.size_bytes not in (None, size_bytes):
                    what = f"{name} must have {member.size_bytes} bytes, but has {size_bytes}"
                    raise ValueError(what)
                target = os.path.join(staging.path, *name.split("/"))
                os.makedirs(os.path.dirname(target), exist_ok=True)
                with open(target, "xb") as file:
                    shutil.copyfileobj(source, file, _BLOCK_BYTES)
                    if file.tell() != size_bytes:
                        raise EOFError(f"{name} ends after {file.tell()} of {size_bytes} bytes")
                member.check(target)
                if not missing:
                    break
            if missing:
                raise ValueError(f"{min(missing)} is missing")
            staging.publish()
    except JobError:
        raise
    # Every format has its own errors of damaged archives.
    except Exception as error:
        # Damage can also be an OSError: without a number, or EINVAL.
        if not isinstance(error, OSError) or error.errno in (None, errno.EINVAL):
            what = f"The archive cannot be read: {first_line(error)}"
            raise DataDamagedError(what, where=path, remedy="Get the archive again.") from error
        raise StorageError(
            f"Unpacking failed: {error.strerror or error}",
            where=folder,
            remedy="Check free space and permissions, or name another folder.",
        ) from error


def _entries(path: str) -> Iterator[tuple[str, int, IO[bytes] | None]]:
    """Yields name, size and content of every entry; content is `None` for links and devices."""
    if zipfile.is_zipfile(path):
        # `zipfile` verifies checksums.
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                with archive.open(entry) as file:
                    yield entry.filename, entry.file_size, file
        return
    # As a stream: seeking backwards in a compressed archive restarts decompression.
    with tarfile.open(path, "r|*") as stream:
        for info in stream:
            content = stream.extractfile(info) if info.isreg() else None
            yield info.name.removeprefix("./"), info.size, content
