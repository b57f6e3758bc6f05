"""Downloads of published files that resume and verify size and SHA-256."""

import contextlib
import dataclasses
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import IO, Any

from txl_tf.errors import DataDamagedError, InputMissingError, OutputExistsError, StorageError
from txl_tf.storage.files import file_sha256, first_line, flush_to_disk, open_locked
from txl_tf.storage.untrusted_files import storage_errors

Progress = Callable[[int, int | None], None]

_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
# The file has become shorter, or another part is sent: the answer is no continuation.
_OTHER_RANGE = frozenset({http.client.PARTIAL_CONTENT, 416})
_MAX_PAUSE_SECONDS = 60.0
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
        remedy = f"Get {self.name} again from {self.url}"
        with storage_errors("The file cannot be read", path):
            size = os.path.getsize(path)
            if self.size_bytes not in (None, size):
                what = f"{self.name} must have {self.size_bytes} bytes, but has {size}."
                raise DataDamagedError(what, where=path, remedy=remedy)
            if self.sha256 is not None and (found := file_sha256(path)) != self.sha256:
                what = f"{self.name} must have SHA-256 {self.sha256}, but has {found}."
                raise DataDamagedError(what, where=path, remedy=remedy)


def download(
    file: PublishedFile,
    folder: str,
    *,
    progress: Progress | None = None,
    max_attempts: int = 6,
    pause_seconds: float = 1.0,
    timeout_seconds: float = 60.0,
) -> str:
    """Fetches a file into a folder, unless it is there; returns its path.

    Until it is complete and verified it is `NAME.partial`, which a later call resumes. It is
    deleted if it is not the published file. Failed connections and the answers 408, 425, 429 and
    5xx are retried after a pause that doubles; `max_attempts` counts attempts without progress.
    `progress` gets the bytes so far and in total. Raises InputMissingError, DataDamagedError,
    OutputExistsError (fetched by another process) or StorageError.
    """
    target = os.path.join(os.path.abspath(folder), file.name)
    partial = f"{target}.partial"
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.exists(target):
            return target
        with os.fdopen(open_locked(partial, flags=os.O_APPEND), "ab") as output:
            failed = best_bytes = 0
            while (reason := _receive(file, output, timeout_seconds, progress)) is not None:
                failed = 1 if output.tell() > best_bytes else failed + 1
                best_bytes = max(best_bytes, output.tell())
                if failed >= max_attempts:
                    raise StorageError(
                        f"{file.name} cannot be fetched: {reason}.",
                        where=file.url,
                        remedy="Try again later; the download then resumes.",
                    )
                time.sleep(min(pause_seconds * 2 ** (failed - 1), _MAX_PAUSE_SECONDS))
            output.flush()
            file.check(partial)
            flush_to_disk(partial)
            os.replace(partial, target)
        flush_to_disk(os.path.dirname(target))
        return target
    except DataDamagedError as error:
        with contextlib.suppress(FileNotFoundError):
            os.remove(partial)
        remedy = "Start again: the file may have changed. If this repeats, check the address."
        raise DataDamagedError(error.what, where=file.url, remedy=remedy) from error
    except BlockingIOError as error:
        raise OutputExistsError(
            "Another process is downloading this file.",
            where=target,
            remedy="Wait for it to end, or name another folder.",
        ) from error
    except OSError as error:
        raise StorageError(
            f"Writing the download failed: {error.strerror or error}",
            where=target,
            remedy="Check free space and permissions, then start again; the download resumes.",
        ) from error


def _receive(
    file: PublishedFile, output: IO[bytes], timeout_seconds: float, progress: Progress | None
) -> str | None:
    """Makes one request and appends its bytes; returns why the file is incomplete, or `None`."""
    done, expected = output.tell(), file.size_bytes
    # A download that was killed at its very end has no rest to request.
    if done and done == expected:
        return None
    # A compressed transfer could neither be counted nor resumed.
    headers = {"Accept-Encoding": "identity", "User-Agent": "txl-tf"}
    if done:
        headers["Range"] = f"bytes={done}-"
    request = urllib.request.Request(file.url, headers=headers)
    try:
        answer: Any = urllib.request.urlopen(request, timeout=timeout_seconds)
    except urllib.error.HTTPError as error:
        answer = error
    except (OSError, http.client.HTTPException) as error:
        return first_line(getattr(error, "reason", error))
    with answer:
        if answer.status in _TRY_AGAIN:
            return f"the server answers {answer.status}"
        if answer.status not in (http.client.OK, *_OTHER_RANGE):
            raise InputMissingError(
                f"The server does not give {file.name}: it answers {answer.status}.",
                where=file.url,
                remedy="Get the file elsewhere, and give its path instead.",
            )
        given = answer.headers.get("Content-Range", "")
        is_rest = answer.status == http.client.PARTIAL_CONTENT and given.startswith(
            f"bytes {done}-"
        )
        if not is_rest:
            done = 0
            output.seek(0)
            output.truncate()
            if answer.status != http.client.OK:
                return "the server does not send the missing part of the file"
        total = expected if answer.length is None else done + answer.length
        if expected not in (None, total):
            what = f"{file.name} must have {expected} bytes, but the server has {total}."
            raise DataDamagedError(what)
        # An endless answer ends at the size that is known.
        while total is None or done < total:
            try:
                block = answer.read1(_BLOCK_BYTES)
            except (OSError, http.client.HTTPException) as error:
                return first_line(error)
            if not block:
                break
            output.write(block)
            done += len(block)
            if progress is not None:
                progress(done, total)
    if total is not None and done < total:
        return f"the connection ended after {done} of {total} bytes"
    return None
