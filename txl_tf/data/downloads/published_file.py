"""A file that somebody publishes, and how to tell that one has it."""

import dataclasses
import os
import re

from txl_tf.errors import DataDamagedError, InputMissingError, StorageError
from txl_tf.file_storage import file_sha256

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedFile:
    """A file with the addresses it can be had from.

    Args:
        name: str. The name of the file, without folders.
        urls: tuple of str. Addresses, `http` or `https`, tried in this order.
        size_bytes: optional int. Its size; `None` if that is not known.
        sha256: optional str. Its SHA-256, in hexadecimal; `None` if that is not
            known.

    Raises:
        ValueError: If the name has folders, an address is of another kind or
            the checksum is no SHA-256.
    """

    name: str
    urls: tuple[str, ...]
    size_bytes: int | None = None
    sha256: str | None = None

    def __post_init__(self) -> None:
        if os.path.basename(self.name) != self.name or self.name in ("", ".", ".."):
            raise ValueError(f"`name` must be the name of a file. Received: {self.name!r}")
        if not all(url.startswith(("http://", "https://")) for url in self.urls):
            raise ValueError(f"`urls` must be http or https. Received: {self.urls}")
        if self.sha256 is not None and not _SHA256.fullmatch(self.sha256):
            raise ValueError(f"`sha256` must have 64 hexadecimal digits. Received: {self.sha256!r}")

    def check(self, path: str) -> None:
        """Checks that a file is this one, as far as size and checksum are known.

        Args:
            path: str. The file.

        Raises:
            InputMissingError: If there is no such file.
            DataDamagedError: If it is another file, or damaged.
            StorageError: If it cannot be read.
        """
        remedy = f"Get {self.name} again: {self.urls[0]}" if self.urls else "Get the file again."
        try:
            size = os.path.getsize(path)
            if self.size_bytes not in (None, size):
                what = f"{self.name} must have {self.size_bytes} bytes, but has {size}."
                raise DataDamagedError(what, where=path, remedy=remedy)
            if self.sha256 is not None and (found := sha256_of_file(path)) != self.sha256:
                what = f"{self.name} must have SHA-256 {self.sha256}, but has {found}."
                raise DataDamagedError(what, where=path, remedy=remedy)
        except FileNotFoundError as error:
            what = f"There is no {self.name}."
            raise InputMissingError(what, where=path, remedy="Name an existing file.") from error
        except OSError as error:
            what = f"The file cannot be read: {error.strerror or error}"
            raise StorageError(what, where=path, remedy="Check the storage.") from error


def sha256_of_file(path: str) -> str:
    """Returns the SHA-256 of a file.

    Args:
        path: str. The file.

    Returns:
        The SHA-256 in hexadecimal.

    Raises:
        OSError: If the file cannot be read.
    """
    return file_sha256(path)
