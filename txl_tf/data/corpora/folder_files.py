"""The files of a corpus in a folder."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from txl_tf.data.corpora.corpus_member import CorpusMember
from txl_tf.data.text_sources.text_blocks import unreadable
from txl_tf.errors import InputMissingError
from txl_tf.file_storage import open_regular_file

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
