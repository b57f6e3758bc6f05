"""Members of tar archives, read and unpacked within limits."""

import dataclasses
import io
import os
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, cast

from txl_tf.data.partial_download import PublishedFile
from txl_tf.data.text_files import text_blocks
from txl_tf.errors import DataDamagedError, StorageError
from txl_tf.storage.files import remove_file
from txl_tf.storage.local_files import flush_to_disk, open_for_writing


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusMember:
    """A file in the archive of a corpus, and what it is called when unpacked.

    Args:
        path: str. Its path in the archive, with `/`.
        other_paths: tuple of str. Where else it may be in a folder, such as
            without the folder of the archive.
        max_bytes: int. More than this is not read, so that a small archive
            cannot become an endless text.
        size_bytes: optional int. Its size; `None` if that is not known.
        sha256: optional str. Its SHA-256, in hexadecimal; `None` if that is not
            known.
    """

    path: str
    other_paths: tuple[str, ...] = ()
    max_bytes: int
    size_bytes: int | None = None
    sha256: str | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """All its paths, that in the archive first."""
        return (self.path, *self.other_paths)

    def check(self, path: str) -> None:
        """Checks an unpacked file, as far as size and checksum are known.

        Args:
            path: str. The file.

        Raises:
            DataDamagedError: If it is another file, or damaged.
        """
        name = self.path.rsplit("/", 1)[-1]
        PublishedFile(name=name, urls=(), size_bytes=self.size_bytes, sha256=self.sha256).check(
            path
        )


_BLOCK_BYTES = 1 << 20
# What may stand between two files: their names, and what the reader reads ahead.
_MAX_HEADER_BYTES = 4 << 20
# Text is packed to a tenth, and never to less than this part.
_MAX_RATIO = 100
_ALWAYS_ALLOWED_BYTES = 64 << 20
_DAMAGE = (tarfile.TarError, EOFError, LookupError, OverflowError, ValueError)


def unpack_tar(path: str, members: Sequence[CorpusMember], folder: str) -> None:
    """Writes the files of a corpus into a folder, unless they are there.

    Only the files asked for are written, under the names asked for: no other
    name of the archive is ever used as a path, and links and devices are not
    followed or made. A file has its name only when it is complete. An archive
    that unpacks to more than 64 MiB and a hundred times its size is refused, and
    so are more than 4 MiB of names and attributes of one file.

    Args:
        path: str. The tar archive, compressed or not.
        members: sequence of `CorpusMember`. The files.
        folder: str. Where to put them; made if it does not exist.

    Raises:
        DataDamagedError: If the archive is damaged, a file is missing, is no
            file, or has more in it than it can.
        StorageError: If the archive cannot be read, or the disk is full.
    """
    targets = {member.path: os.path.join(folder, *member.path.split("/")) for member in members}
    wanted = {member.path: member for member in members}
    missing = {name for name, target in targets.items() if not os.path.isfile(target)}
    if not missing:
        return
    try:
        # As a stream: going back in a compressed archive would mean to start again.
        raw = _Stream(text_blocks(path), os.path.getsize(path))
        stream = io.BufferedReader(cast(io.RawIOBase, raw), _BLOCK_BYTES)
        with stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            for info in archive:
                raw.allow(info)
                name = info.name.removeprefix("./")
                if name in missing:
                    _unpack(archive, info, wanted[name], targets[name], path)
                    missing.remove(name)
                if not missing:
                    break
    except _DAMAGE as error:
        raise _damaged(f"The archive cannot be read: {error}", path) from error
    except OSError as error:
        raise StorageError(
            f"Unpacking failed: {error.strerror or error}",
            where=folder,
            remedy="Check free space and permissions, or name another folder.",
        ) from error
    if missing:
        raise _damaged(f"The archive has no {min(missing)}.", path)


class _Stream(io.RawIOBase):
    """Forward-only file object over blocks of bytes.

    It ends with an error where there are more bytes than an archive of this
    size stands for, or before the next file than a name can take: the reader of
    the archive takes names and attributes into memory, however long they are.
    """

    def __init__(self, blocks: Iterator[bytes], num_packed_bytes: int) -> None:
        self._blocks = blocks
        self._rest = b""
        self._left = _MAX_RATIO * num_packed_bytes + _ALWAYS_ALLOWED_BYTES
        self._left_before_next = _MAX_HEADER_BYTES

    def allow(self, info: tarfile.TarInfo) -> None:
        """Allows the bytes of one file and of the header of the next."""
        if info.issparse():
            raise ValueError("it has a file with holes")
        self._left_before_next = info.size + _MAX_HEADER_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._rest = self._rest or next(self._blocks, b"")
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        self._left -= count
        self._left_before_next -= count
        if min(self._left, self._left_before_next) < 0:
            raise ValueError("it unpacks to far more than its files need")
        return count


def _unpack(
    archive: tarfile.TarFile, info: tarfile.TarInfo, member: CorpusMember, target: str, path: str
) -> None:
    if not info.isfile():
        raise _damaged(f"{member.path} is no file, but a link or something else.", path)
    if info.size > member.max_bytes or member.size_bytes not in (None, info.size):
        expected = member.size_bytes or f"at most {member.max_bytes}"
        raise _damaged(f"{member.path} must have {expected} bytes, but has {info.size}.", path)
    source = archive.extractfile(info)
    if source is None:
        raise _damaged(f"{member.path} cannot be read.", path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    # Another process may be unpacking the same archive.
    partial = f"{target}.{os.getpid()}.partial"
    try:
        remove_file(partial)
        with source, os.fdopen(open_for_writing(partial, must_be_new=True), "wb") as file:
            _copy(source, file, info.size)
        member.check(partial)
        flush_to_disk(partial)
        os.replace(partial, target)
        flush_to_disk(os.path.dirname(target))
    except BaseException:
        remove_file(partial)
        raise


def _copy(source: IO[bytes], file: IO[bytes], size: int) -> None:
    shutil.copyfileobj(source, file, _BLOCK_BYTES)
    if file.tell() != size:
        raise EOFError(f"it ends after {file.tell()} of {size} bytes of a file")


def _damaged(what: str, path: str) -> DataDamagedError:
    return DataDamagedError(what, where=path, remedy="Get the archive again.")


def byte_range(
    blocks: Iterable[bytes], start_byte: int, stop_byte: int, *, where: str
) -> Iterator[bytes]:
    """Gives the bytes of a stream from one place up to another.

    Args:
        blocks: iterable of bytes. The stream from its beginning.
        start_byte: int. The first byte.
        stop_byte: int. The byte after the last one.
        where: str. What the stream is, for errors.

    Yields:
        The bytes, in blocks.

    Raises:
        DataDamagedError: If the stream is shorter.
    """
    offset = 0
    for block in blocks:
        part = block[max(0, start_byte - offset) : max(0, stop_byte - offset)]
        offset += len(block)
        if part:
            yield part
        if offset >= stop_byte:
            return
    raise DataDamagedError(
        f"The text must have {stop_byte} bytes, but has {offset}.",
        where=where,
        remedy="Get the file again.",
    )
