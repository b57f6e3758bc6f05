"""Downloads of published files that resume and verify size and SHA-256."""

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
    """Published file: `http` or `https` address, with size and SHA-256 if known."""

    name: str
    url: str
    size_bytes: int | None = None
    sha256: str | None = None

    def check(self, path: str) -> None:
        """Raises DataDamagedError if a file has another size or SHA-256, as far as they are known.

        Raises StorageError if it cannot be read.
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
    """Fetches a file into a folder, unless it is there; returns its path.

    Until it is complete and verified it is `NAME.partial`, which a later call resumes. It is
    deleted if it is not the published file. `progress` gets the bytes so far and in total. Raises
    InputMissingError, DataDamagedError, OutputExistsError (fetched by another process) or
    StorageError.
    """
    target = os.path.join(os.path.abspath(folder), file.name)
    partial = f"{target}.partial"
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.exists(target):
            return target
        with os.fdopen(open_locked(partial, flags=os.O_APPEND), "ab") as output:
            # A download that was killed at its very end has no rest to request.
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
    """Requests the missing bytes and appends them; OSError if the connection ends earlier."""
    num_bytes, size_bytes = output.tell(), file.size_bytes
    # A compressed transfer could neither be counted nor resumed.
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
        # An endless answer ends at the size that is known.
        while (total is None or num_bytes < total) and (block := answer.read1(_BLOCK_BYTES)):
            output.write(block)
            num_bytes += len(block)
            if progress is not None:
                progress(num_bytes, total)
    if total is not None and num_bytes < total:
        raise OSError(f"the connection ended after {num_bytes} of {total} bytes")
