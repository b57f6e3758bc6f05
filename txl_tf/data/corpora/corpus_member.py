"""One file of a corpus."""

import dataclasses

from txl_tf.data.downloads.published_file import PublishedFile


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
