"""One request for a file, or for the rest of it."""

import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from types import TracebackType
from typing import Self

# No file has more bytes than 18 digits can say.
_RANGE = re.compile(r"bytes (?:([0-9]{1,18})-[0-9]{1,18}|\*)/([0-9]{1,18}|\*)")
_LENGTH = re.compile(r"[0-9]{1,18}")
_BLOCK_BYTES = 1 << 18


class HttpAnswer:
    """The answer of a server to a request, to be used in a `with` block.

    Only `http` and `https` are spoken, after a redirection too. An answer that
    is an error is an answer like any other; see `status`.

    Args:
        url: str. The address.
        offset: int. Byte from which the file is wanted. Defaults to `0`.
        version: optional str. The version that the bytes before `offset` are
            of; where the file has another one by now, a server sends all of
            it. Must be given with an `offset`.
        timeout_seconds: float. How long the server may be silent.
        proxies: mapping of scheme to address of a proxy; empty for none.

    Raises:
        http.client.HTTPException: On entering, if there is no answer.
    """

    def __init__(
        self,
        url: str,
        *,
        offset: int = 0,
        version: str | None = None,
        timeout_seconds: float,
        proxies: Mapping[str, str],
    ) -> None:
        # Compressed for the transfer, the bytes could neither be counted nor resumed.
        headers = {"Accept-Encoding": "identity", "User-Agent": "txl-tf"}
        if offset:
            headers |= {"Range": f"bytes={offset}-", "If-Range": version or ""}
        self._request = urllib.request.Request(url, headers=headers)
        self._timeout_seconds = timeout_seconds
        self._opener = _opener(proxies)

    def __enter__(self) -> Self:
        try:
            self._response = self._opener.open(self._request, timeout=self._timeout_seconds)
        except urllib.error.HTTPError as error:
            self._response = error
        except (OSError, http.client.HTTPException) as error:
            raise _broken(error) from error
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._response.close()

    @property
    def status(self) -> int:
        """The status, such as 200 for all of the file and 206 for the rest."""
        return self._response.status

    @property
    def offset(self) -> int | None:
        """The byte at which the answer begins; `None` if it does not say."""
        if self.status == http.client.OK:
            return 0
        match = self._range()
        return int(match[1]) if match and match[1] else None

    @property
    def total_bytes(self) -> int | None:
        """The size of the whole file; `None` if the server does not say."""
        if self.status != http.client.OK:
            match = self._range()
            return int(match[2]) if match and match[2] != "*" else None
        length = self._response.headers.get("Content-Length", "")
        return int(length) if _LENGTH.fullmatch(length) else None

    @property
    def version(self) -> str | None:
        """What names this version of the file; `None` if nothing reliable does."""
        tag = self._response.headers.get("ETag")
        # A weak tag is the same for files that mean the same, and may differ in bytes.
        if tag and not tag.startswith("W/"):
            return tag
        return self._response.headers.get("Last-Modified")

    def read(self) -> bytes:
        """Reads what has arrived, and waits where nothing has.

        Returns:
            Some bytes; none at the end of the answer.

        Raises:
            http.client.HTTPException: If the connection breaks.
        """
        try:
            return self._response.read1(_BLOCK_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise _broken(error) from error

    def _range(self) -> re.Match[str] | None:
        return _RANGE.fullmatch(self._response.headers.get("Content-Range", ""))


def _broken(error: Exception) -> http.client.HTTPException:
    """One kind for all that a connection can do, and not that of a failing disk."""
    reason = getattr(error, "reason", None) or error
    return http.client.HTTPException(" ".join(str(reason).split()) or type(error).__name__)


def _opener(proxies: Mapping[str, str]) -> urllib.request.OpenerDirector:
    # Put together by hand: the usual opener also opens local files and takes
    # proxies from the environment.
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
