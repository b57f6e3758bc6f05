"""An incomplete download: expected file, HTTP answer, bytes on disk."""

import contextlib
import dataclasses
import http.client
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import IO, Any

from txl_tf.errors import DataDamagedError, InputMissingError, OutputExistsError
from txl_tf.storage.files import file_sha256, read_file, remove_file, write_file
from txl_tf.storage.local_files import flush_to_disk, open_locked
from txl_tf.storage.untrusted_files import parse_json, storage_errors

# 18 digits suffice for the size of any file.
_RANGE = re.compile(r"bytes (?:([0-9]{1,18})-[0-9]{1,18}|\*)/([0-9]{1,18}|\*)")
_LENGTH = re.compile(r"[0-9]{1,18}")
_BLOCK_BYTES = 1 << 18


@contextlib.contextmanager
def http_answer(
    url: str,
    *,
    offset: int = 0,
    version: str | None = None,
    timeout_seconds: float,
    proxies: Mapping[str, str],
) -> Iterator["HttpAnswer"]:
    """Requests a file, or its bytes from `offset` on, over HTTP or HTTPS only, redirects included.

    With `version` a server whose file has changed sends the whole file. Error statuses are answers
    too; see `HttpAnswer.status`. Raises http.client.HTTPException if there is no answer within
    `timeout_seconds`.
    """
    # A compressed transfer could neither be counted nor resumed.
    headers = {"Accept-Encoding": "identity", "User-Agent": "txl-tf"}
    if offset:
        headers |= {"Range": f"bytes={offset}-", "If-Range": version or ""}
    request = urllib.request.Request(url, headers=headers)
    try:
        response = _opener(proxies).open(request, timeout=timeout_seconds)
    except urllib.error.HTTPError as error:
        response = error
    except (OSError, http.client.HTTPException) as error:
        raise _broken(error) from error
    with contextlib.closing(response):
        yield HttpAnswer(response)


class HttpAnswer:
    """The answer of a server to a request of `http_answer`."""

    def __init__(self, response: Any) -> None:
        self._response = response

    @property
    def status(self) -> int:
        """Status code, such as 200 for the whole file and 206 for the rest."""
        return self._response.status

    @property
    def offset(self) -> int | None:
        """First byte of the answer in the file; `None` if unknown."""
        if self.status == http.client.OK:
            return 0
        match = self._range()
        return int(match[1]) if match and match[1] else None

    @property
    def total_bytes(self) -> int | None:
        """Size of the whole file; `None` if unknown."""
        if self.status != http.client.OK:
            match = self._range()
            return int(match[2]) if match and match[2] != "*" else None
        length = self._response.headers.get("Content-Length", "")
        return int(length) if _LENGTH.fullmatch(length) else None

    @property
    def version(self) -> str | None:
        """Strong ETag, else Last-Modified; `None` if the server sends neither."""
        tag = self._response.headers.get("ETag")
        # Files with the same weak tag may differ in bytes.
        if tag and not tag.startswith("W/"):
            return tag
        return self._response.headers.get("Last-Modified")

    def read(self) -> bytes:
        """Waits for bytes and returns them; empty at the end of the answer.

        Raises http.client.HTTPException if the connection breaks.
        """
        try:
            return self._response.read1(_BLOCK_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise _broken(error) from error

    def _range(self) -> re.Match[str] | None:
        return _RANGE.fullmatch(self._response.headers.get("Content-Range", ""))


def _broken(error: Exception) -> http.client.HTTPException:
    """Converts all connection errors to one type, distinct from disk errors."""
    reason = getattr(error, "reason", None) or error
    return http.client.HTTPException(" ".join(str(reason).split()) or type(error).__name__)


def _opener(proxies: Mapping[str, str]) -> urllib.request.OpenerDirector:
    # The default opener also opens local files and takes proxies from the environment.
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(dict(proxies)),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


class PartialFile:
    """`NAME.partial`, with the version of its source in `NAME.partial.json`.

    Resuming needs the version, an ETag or a date: without it the rest may come from another file.
    The part is locked while it is written. A process whose part was replaced meanwhile, after a
    long pause, leaves it alone.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._written: os.stat_result | None = None
        self.path = f"{target}.partial"
        self._version_path = f"{self.path}.json"

    @property
    def size_bytes(self) -> int:
        """Bytes received so far."""
        try:
            return os.path.getsize(self.path)
        except FileNotFoundError:
            return 0

    def version(self, url: str) -> str | None:
        """Returns ETag or date of the part if it came from this address, else `None`."""
        try:
            values = parse_json(read_file(self._version_path, max_bytes=4096))
        except (OSError, ValueError, DataDamagedError):
            return None
        if not isinstance(values, dict) or values.get("url") != url:
            return None
        version = values.get("version")
        return version if isinstance(version, str) else None

    def begin(self, url: str, version: str | None) -> None:
        """Discards the part and records which version of the file will be written."""
        # In this order a kill in between leaves no part with a wrong version.
        self.discard()
        if version is not None:
            content = json.dumps({"url": url, "version": version})
            write_file(self._version_path, content.encode())

    def open_to_append(self) -> IO[bytes]:
        """Opens the part at its end; raises OutputExistsError if another process writes it."""
        self._check()
        try:
            descriptor = open_locked(self.path, appends=True)
        except BlockingIOError as error:
            raise self._of_another() from error
        self._written = os.fstat(descriptor)
        return os.fdopen(descriptor, "ab")

    def discard(self) -> None:
        """Removes the part and its version."""
        self._check()
        for path in (self._version_path, self.path):
            remove_file(path)
        self._written = None

    def set_aside(self) -> str:
        """Renames the part to `NAME.damaged` for inspection, and returns the new path."""
        self._check()
        aside = f"{self._target}.damaged"
        os.replace(self.path, aside)
        self._written = None
        self.discard()
        return aside

    def publish(self) -> None:
        """Renames the complete part to its final name."""
        self._check()
        flush_to_disk(self.path)
        os.replace(self.path, self._target)
        self._written = None
        self.discard()
        flush_to_disk(os.path.dirname(self._target))

    def _check(self) -> None:
        """Raises an error if another process has replaced the part."""
        if self._written is None:
            return
        try:
            is_own = os.path.samestat(os.lstat(self.path), self._written)
        except FileNotFoundError:
            is_own = False
        if not is_own:
            raise self._of_another()

    def _of_another(self) -> OutputExistsError:
        return OutputExistsError(
            "Another process is downloading this file.",
            where=self._target,
            remedy="Wait for it to end, or name another folder.",
        )


_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedFile:
    """Published file: its `http` or `https` addresses in order of use, size and SHA-256 if known.

    Raises ValueError if the name has folders, or an address or the checksum is malformed.
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
        """Checks the size and SHA-256 of a file, as far as they are known.

        Raises InputMissingError, DataDamagedError if it differs, or StorageError if it cannot be
        read.
        """
        remedy = f"Get {self.name} again: {self.urls[0]}" if self.urls else "Get the file again."
        with storage_errors("The file cannot be read", path):
            try:
                size = os.path.getsize(path)
                if self.size_bytes not in (None, size):
                    what = f"{self.name} must have {self.size_bytes} bytes, but has {size}."
                    raise DataDamagedError(what, where=path, remedy=remedy)
                if self.sha256 is not None and (found := file_sha256(path)) != self.sha256:
                    what = f"{self.name} must have SHA-256 {self.sha256}, but has {found}."
                    raise DataDamagedError(what, where=path, remedy=remedy)
            except FileNotFoundError as error:
                what = f"There is no {self.name}."
                remedy = "Name an existing file."
                raise InputMissingError(what, where=path, remedy=remedy) from error
