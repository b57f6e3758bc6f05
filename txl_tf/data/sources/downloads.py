"""Downloads of published files, which resume and are compared with a known size and SHA-256."""

import contextlib
import dataclasses
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import IO, Any

from txl_tf.errors import (
    DataDamagedError,
    InputMissingError,
    OutputExistsError,
    StorageError,
    first_line,
    storage_errors,
)
from txl_tf.storage.files import file_sha256, flush_to_disk
from txl_tf.storage.locks import open_locked

Progress = Callable[[int, int | None], None]

_BLOCK_BYTES = 1 << 18


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedFile:
    """Published file with its `http` or `https` address, and its size and SHA-256 if known."""

    name: str
    url: str
    size_bytes: int | None = None
    sha256: str | None = None

    def check(self, path: str) -> None:
        """Raises DataDamagedError if the file at a path has another size or SHA-256.

        A size or checksum that is not known is not compared. Raises StorageError if the file cannot
        be read.
        """
        remedy = f"Get {self.name} from {self.url}, or unpack another package and name its folder."
        with storage_errors("The file cannot be read", path):
            size = os.path.getsize(path)
            if self.size_bytes not in (None, size):
                raise DataDamagedError(
                    f"{self.name} must have {self.size_bytes} bytes, but has {size}.",
                    where=path,
                    remedy=remedy,
                )
            if self.sha256 is not None and (checksum := file_sha256(path)) != self.sha256:
                raise DataDamagedError(
                    f"{self.name} must have SHA-256 {self.sha256}, but has {checksum}.",
                    where=path,
                    remedy=remedy,
                )


def download(
    file: PublishedFile,
    folder: str,
    *,
    progress: Progress | None = None,
    timeout_seconds: float = 60.0,
) -> str:
    """Downloads a file into a folder unless the folder has it, and returns its path.

    The file has the name `NAME.partial` until it is complete and verified. A later call resumes a
    partial file. A file that is not the published one is removed.

    Args:
        file: `PublishedFile`.
        folder: str. Folder of the download, which is created if it is missing.
        progress: optional function of the number of bytes so far and the total, which may be
            `None`.
        timeout_seconds: float. Longest time without an answer. Defaults to `60`.

    Raises:
        InputMissingError: If the server does not have the file.
        DataDamagedError: If the file is not the published one.
        OutputExistsError: If another process is downloading it.
        StorageError: If the connection or the storage fails.
    """
    target = os.path.join(os.path.abspath(folder), file.name)
    partial = f"{target}.partial"
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.exists(target):
            return target
        with os.fdopen(open_locked(partial, flags=os.O_APPEND), "ab") as output:
            # A process that was killed after the last byte leaves nothing to request.
            if not output.tell() or output.tell() != file.size_bytes:
                _receive(file, output, timeout_seconds, progress)
            output.flush()
            file.check(partial)
            flush_to_disk(partial)
            os.replace(partial, target)
        flush_to_disk(os.path.dirname(target))
        return target
    except DataDamagedError as error:
        with contextlib.suppress(FileNotFoundError):
            os.remove(partial)
        raise DataDamagedError(
            error.what,
            where=file.url,
            remedy="Start again: the file may have changed. If this repeats, check the address.",
        ) from error
    except BlockingIOError as error:
        raise OutputExistsError(
            "Another process is downloading this file.",
            where=target,
            remedy="Wait for it to end, or name another folder.",
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise StorageError(
            f"The download of {file.name} failed: {first_line(error)}",
            where=f"{file.url} to {target}",
            remedy="Check the connection and free space, then start again: the download resumes.",
        ) from error


def _receive(
    file: PublishedFile, output: IO[bytes], timeout_seconds: float, progress: Progress | None
) -> None:
    """Requests the missing bytes and appends them; OSError if the connection ends too early."""
    num_bytes, size_bytes = output.tell(), file.size_bytes
    # The bytes of a compressed transfer could neither be counted nor resumed.
    headers = {"Accept-Encoding": "identity", "User-Agent": "txl-tf"}
    if num_bytes:
        headers["Range"] = f"bytes={num_bytes}-"
    request = urllib.request.Request(file.url, headers=headers)
    try:
        answer: Any = urllib.request.urlopen(request, timeout=timeout_seconds)
    except urllib.error.HTTPError as error:
        error.close()
        if num_bytes and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise DataDamagedError(f"{file.name} is shorter than its first part.") from error
        if error.code >= http.client.INTERNAL_SERVER_ERROR:
            raise
        raise InputMissingError(
            f"The server does not give {file.name}: it answers {error.code}.",
            where=file.url,
            remedy="Get the file elsewhere, and name it or a folder with its files: --archive",
        ) from error
    with answer:
        if num_bytes and answer.status == http.client.OK:  # a server without ranges
            num_bytes = 0
            output.seek(0)
            output.truncate()
        total = size_bytes if answer.length is None else num_bytes + answer.length
        if size_bytes not in (None, total):
            raise DataDamagedError(
                f"{file.name} must have {size_bytes} bytes, but the server has {total}."
            )
        # An answer that does not end is cut at the known size.
        while (total is None or num_bytes < total) and (block := answer.read1(_BLOCK_BYTES)):
            output.write(block)
            num_bytes += len(block)
            if progress is not None:
                progress(num_bytes, total)
    if total is not None and num_bytes < total:
        raise OSError(f"the connection ended after {num_bytes} of {total} bytes")
