"""Fetches one file from one address, until all of it is there."""

import http.client
import os
import shutil
import time
from collections.abc import Callable, Mapping

from txl_tf.data.downloads.http_answer import HttpAnswer
from txl_tf.data.downloads.partial_file import PartialFile
from txl_tf.data.downloads.published_file import PublishedFile
from txl_tf.errors import DataDamagedError, InputMissingError, StorageError

Progress = Callable[[int, int | None], None]

_MAX_PAUSE_SECONDS = 60.0
_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})


class FileTransfer:
    """The attempts to fetch a file from one address.

    Args:
        file: `PublishedFile`. What to fetch.
        url: str. The address.
        partial: `PartialFile`. What there is of it, and where to add to it.
        max_attempts: int. Attempts without any progress.
        pause_seconds: float. The first pause between attempts; it doubles.
        timeout_seconds: float. How long the server may be silent.
        proxies: mapping of scheme to the address of a proxy.
        progress: optional function, called with the bytes there are and the
            bytes of the whole file, or `None` where that is not known.
    """

    def __init__(
        self,
        file: PublishedFile,
        url: str,
        partial: PartialFile,
        *,
        max_attempts: int,
        pause_seconds: float,
        timeout_seconds: float,
        proxies: Mapping[str, str],
        progress: Progress | None,
    ) -> None:
        self._file = file
        self._url = url
        self._partial = partial
        self._max_attempts = max_attempts
        self._pause_seconds = pause_seconds
        self._timeout_seconds = timeout_seconds
        self._proxies = proxies
        self._progress = progress

    def run(self) -> None:
        """Fetches until the partial file is complete and right.

        Raises:
            InputMissingError: If the server does not give the file.
            DataDamagedError: If it gives another one.
            StorageError: If there is no connection, or no space on the disk.
            OSError: If the disk fails.
        """
        for is_last_try in (False, True):
            was_resumed = self._complete()
            try:
                self._file.check(self._partial.path)
                return
            except DataDamagedError as error:
                aside = self._partial.set_aside()
                # Its parts may be of different files: once more, in one piece.
                if is_last_try or not was_resumed:
                    remedy = f"It is set aside as {aside}; look whether the address is right."
                    raise DataDamagedError(error.what, where=self._url, remedy=remedy) from error

    def _complete(self) -> bool:
        """Tries until all is there; returns whether it came in more than one piece."""
        failed = 0
        best_bytes = size = self._partial.size_bytes
        was_resumed = size > 0
        # Of a download that was killed at its very end, nothing is left to ask for.
        if was_resumed and size == self._file.size_bytes:
            return True
        while (reason := self._receive()) is not None:
            size = self._partial.size_bytes
            was_resumed |= size > 0
            failed = 1 if size > best_bytes else failed + 1
            best_bytes = max(best_bytes, size)
            if failed >= self._max_attempts:
                raise StorageError(
                    f"{self._file.name} cannot be fetched: {reason}.",
                    where=self._url,
                    remedy="Try again later; a next try goes on from here.",
                )
            time.sleep(min(self._pause_seconds * 2 ** (failed - 1), _MAX_PAUSE_SECONDS))
        return was_resumed

    def _receive(self) -> str | None:
        """Makes one request and keeps what it brings; returns why there is less than all."""
        version = self._partial.version(self._url)
        if version is None:
            self._partial.discard()
        offset = self._partial.size_bytes
        answer = HttpAnswer(
            self._url,
            offset=offset,
            version=version,
            timeout_seconds=self._timeout_seconds,
            proxies=self._proxies,
        )
        try:
            with answer:
                return self._take(answer, offset, version)
        except http.client.HTTPException as error:
            return str(error)

    def _take(self, answer: HttpAnswer, offset: int, version: str | None) -> str | None:
        if answer.status == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            if answer.total_bytes == offset:
                return None
            self._partial.discard()
            return "the server no longer has the range asked for"
        if answer.status in _TRY_AGAIN:
            return f"the server answers {answer.status}"
        if answer.status not in (http.client.OK, http.client.PARTIAL_CONTENT):
            raise InputMissingError(
                f"The server does not give {self._file.name}: it answers {answer.status}.",
                where=self._url,
                remedy="Get the file elsewhere, and name it.",
            )
        if answer.status == http.client.OK:
            self._partial.begin(self._url, answer.version)
        elif answer.offset != offset or answer.version not in (None, version):
            self._partial.discard()
            return "the server answers with another part than asked for"
        return self._store(answer)

    def _store(self, answer: HttpAnswer) -> str | None:
        total = self._file.size_bytes if answer.total_bytes is None else answer.total_bytes
        self._require_expected_size(total)
        done = self._partial.size_bytes
        self._require_space((total or done) - done)
        with self._partial.open_to_append() as output:
            while block := answer.read():
                done += len(block)
                if total is not None and done > total:
                    break
                output.write(block)
                if self._progress is not None:
                    self._progress(done, total)
        if total is not None and done > total:
            self._partial.discard()
            return f"the server sends more than the {total} bytes of the file"
        if total is not None and done < total:
            return f"the connection ended after {done} of {total} bytes"
        return None

    def _require_expected_size(self, total: int | None) -> None:
        expected = self._file.size_bytes
        if expected is None or total == expected:
            return
        self._partial.discard()
        raise DataDamagedError(
            f"{self._file.name} must have {expected} bytes, but the server has {total}.",
            where=self._url,
            remedy="Look whether the address still has the file that is meant.",
        )

    def _require_space(self, needed_bytes: int) -> None:
        folder = os.path.dirname(self._partial.path)
        free = shutil.disk_usage(folder).free
        if needed_bytes > free:
            raise StorageError(
                f"The download needs {needed_bytes} bytes more, and {free} are free.",
                where=folder,
                remedy="Make room, or name another folder; a next try goes on from here.",
            )
