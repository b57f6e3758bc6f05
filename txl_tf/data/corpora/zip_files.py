"""The files of a corpus in a zip archive, read without unpacking it."""

import errno
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence

from txl_tf.data.corpora.corpus_member import CorpusMember
from txl_tf.data.text_sources.text_blocks import unreadable
from txl_tf.errors import DataDamagedError

_BLOCK_BYTES = 1 << 20
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
