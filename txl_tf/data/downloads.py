"""Downloads of published files that resume and verify SHA-256."""

import contextlib
import dataclasses
import http.client
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping

from txl_tf.data.partial_download import (
    HttpAnswer,
    PartialFile,
    PublishedFile,
    http_answer,
)
from txl_tf.errors import DataDamagedError, InputMissingError, OutputExistsError, StorageError
from txl_tf.storage.local_files import open_locked

Progress = Callable[[int, int | None], None]

_MAX_PAUSE_SECONDS = 60.0
_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclasses.dataclass(kw_only=True)
class FileTransfer:
    """Attempts to fetch a file from one address; for the options, see `download`."""

    file: PublishedFile
    url: str
    partial: PartialFile
    max_attempts: int
    pause_seconds: float
    timeout_seconds: float
    proxies: Mapping[str, str]
    progress: Progress | None

    def run(self) -> None:
        """Fetches until the partial file is complete and verified.

        Raises InputMissingError or DataDamagedError for an answer without the file or with another
        one, StorageError without connection or disk space, OSError if the disk fails.
        """
        for is_last_try in (False, True):
            was_resumed = self._complete()
            try:
                self.file.check(self.partial.path)
                return
            except DataDamagedError as error:
                aside = self.partial.set_aside()
                # The parts may come from different versions of the file: try again in one piece.
                if is_last_try or not was_resumed:
                    remedy = f"It is set aside as {aside}; look whether the address is right."
                    raise DataDamagedError(error.what, where=self.url, remedy=remedy) from error

    def _complete(self) -> bool:
        """Requests until all bytes are there; returns True if the download was resumed."""
        failed = 0
        best_bytes = size = self.partial.size_bytes
        was_resumed = size > 0
        # A download that was killed at its very end has no rest to request.
        if was_resumed and size == self.file.size_bytes:
            return True
        while (reason := self._receive()) is not None:
            size = self.partial.size_bytes
            was_resumed |= size > 0
            failed = 1 if size > best_bytes else failed + 1
            best_bytes = max(best_bytes, size)
            if failed >= self.max_attempts:
                raise StorageError(
                    f"{self.file.name} cannot be fetched: {reason}.",
                    where=self.url,
                    remedy="Try again later; a next try resumes here.",
                )
            time.sleep(min(self.pause_seconds * 2 ** (failed - 1), _MAX_PAUSE_SECONDS))
        return was_resumed

    def _receive(self) -> str | None:
        """Makes one request and stores its bytes; returns why the file is incomplete, or `None`."""
        version = self.partial.version(self.url)
        if version is None:
            self.partial.discard()
        offset = self.partial.size_bytes
        request = http_answer(
            self.url,
            offset=offset,
            version=version,
            timeout_seconds=self.timeout_seconds,
            proxies=self.proxies,
        )
        try:
            with request as answer:
                return self._take(answer, offset, version)
        except http.client.HTTPException as error:
            return str(error)

    def _take(self, answer: HttpAnswer, offset: int, version: str | None) -> str | None:
        if answer.status == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            if answer.total_bytes == offset:
                return None
            self.partial.discard()
            return "the server no longer has the range asked for"
        if answer.status in _TRY_AGAIN:
            return f"the server answers {answer.status}"
        if answer.status not in (http.client.OK, http.client.PARTIAL_CONTENT):
            raise InputMissingError(
                f"The server does not give {self.file.name}: it answers {answer.status}.",
                where=self.url,
                remedy="Get the file elsewhere, and name it.",
            )
        if answer.status == http.client.OK:
            self.partial.begin(self.url, answer.version)
        elif answer.offset != offset or answer.version not in (None, version):
            self.partial.discard()
            return "the server answers with another part than asked for"
        return self._store(answer)

    def _store(self, answer: HttpAnswer) -> str | None:
        total = self.file.size_bytes if answer.total_bytes is None else answer.total_bytes
        self._require_expected_size(total)
        done = self.partial.size_bytes
        self._require_space((total or done) - done)
        with self.partial.open_to_append() as output:
            while block := answer.read():
                done += len(block)
                if total is not None and done > total:
                    break
                output.write(block)
                if self.progress is not None:
                    self.progress(done, total)
        if total is not None and done > total:
            self.partial.discard()
            return f"the server sends more than the {total} bytes of the file"
        if total is not None and done < total:
            return f"the connection ended after {done} of {total} bytes"
        return None

    def _require_expected_size(self, total: int | None) -> None:
        expected = self.file.size_bytes
        if expected is None or total == expected:
            return
        self.partial.discard()
        raise DataDamagedError(
            f"{self.file.name} must have {expected} bytes, but the server has {total}.",
            where=self.url,
            remedy="Look whether the address still has the file that is meant.",
        )

    def _require_space(self, needed_bytes: int) -> None:
        folder = os.path.dirname(self.partial.path)
        free = shutil.disk_usage(folder).free
        if needed_bytes > free:
            raise StorageError(
                f"The download needs {needed_bytes} bytes more, and {free} are free.",
                where=folder,
                remedy="Make room, or name another folder; a next try resumes here.",
            )


def download(
    file: PublishedFile,
    folder: str,
    *,
    max_attempts: int = 6,
    pause_seconds: float = 1.0,
    timeout_seconds: float = 60.0,
    proxies: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> str:
    """Fetches a file into a folder, unless it is there; returns its path.

    Until it is complete and verified it is `NAME.partial`, which a later call resumes by a range
    request for the same version; a file with the wrong content becomes `NAME.damaged`. Failed
    connections, timeouts and the answers 408, 425, 429 and 5xx are retried after a pause that
    doubles; `max_attempts` counts attempts at one address without progress. `proxies` maps schemes
    to addresses; the environment is ignored. `progress` gets the bytes so far and in total.
    Raises InputMissingError, DataDamagedError, OutputExistsError (fetched by another process) or
    StorageError.
    """
    target = os.path.join(os.path.abspath(folder), file.name)
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with _locked(target):
            if _is_there(file, target):
                return target
            partial = PartialFile(target)
            transfers = [
                FileTransfer(
                    file=file,
                    url=url,
                    partial=partial,
                    max_attempts=max_attempts,
                    pause_seconds=pause_seconds,
                    timeout_seconds=timeout_seconds,
                    proxies=proxies or {},
                    progress=progress,
                )
                for url in file.urls
            ]
            _run_first_that_works(file, transfers)
            partial.publish()
            return target
    except OSError as error:
        raise StorageError(
            f"Writing the download failed: {error.strerror or error}",
            where=target,
            remedy="Check free space and permissions; a next try resumes here.",
        ) from error


def _run_first_that_works(file: PublishedFile, transfers: list[FileTransfer]) -> None:
    errors: list[InputMissingError | StorageError] = []
    for transfer in transfers:
        try:
            transfer.run()
            return
        except (InputMissingError, StorageError) as error:
            errors.append(error)
    # An address that failed may still have the file: report that error first.
    failed = [error for error in errors if isinstance(error, StorageError)]
    raise (failed or errors or [InputMissingError(f"{file.name} has no address.")])[0]


def _is_there(file: PublishedFile, target: str) -> bool:
    if not os.path.exists(target):
        return False
    try:
        file.check(target)
        return True
    except DataDamagedError:
        os.replace(target, f"{target}.damaged")
        return False


@contextlib.contextmanager
def _locked(target: str) -> Iterator[None]:
    """Holds a lock beside the target; the lock ends with the process."""
    try:
        descriptor = open_locked(f"{target}.lock", reads=True)
    except BlockingIOError as error:
        raise OutputExistsError(
            "Another process is downloading this file.",
            where=target,
            remedy="Wait for it to end, or name another folder.",
        ) from error
    try:
        yield
    finally:
        os.close(descriptor)
