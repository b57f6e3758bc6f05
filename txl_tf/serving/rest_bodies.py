"""Bodies of REST requests: read within limits, parsed as JSON."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from txl_tf.serving.errors import RequestError, StatusCode
from txl_tf.serving.request_engine import MemoryBudget, ServerLimits
from txl_tf.serving.request_shapes import invalid
from txl_tf.storage.untrusted_files import parse_json

_MAX_LENGTH_DIGITS = 18
# What others may take for the headers that say where a message ends.
_CONFUSING = {"content_length", "transfer_encoding"}


class RestBodies:
    """Count of the bytes of all bodies as they arrive, not as they are announced.

    Args:
        limits: `ServerLimits`.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self.budget = MemoryBudget(limits.max_bodies_bytes)

    @contextlib.asynccontextmanager
    async def account(self) -> AsyncIterator["BodyAccount"]:
        """Holds what is read of a body for as long as the `with` block takes."""
        account = BodyAccount(self)
        try:
            yield account
        finally:
            self.budget.give_back(account.taken_bytes)


class BodyAccount:
    """Reader of one body.

    Attributes:
        taken_bytes: int. Bytes that count against the limit of all bodies.
        must_close: bool. Whether the connection cannot be used again.
    """

    def __init__(self, bodies: RestBodies) -> None:
        self._limits, self._budget = bodies.limits, bodies.budget
        self.taken_bytes = 0
        self.must_close = False

    def require_no_body(self, request: web.BaseRequest) -> None:
        """Raises RequestError if there is a body."""
        self.must_close = True
        headers = request.headers
        says_length = "Content-Length" in headers or "Transfer-Encoding" in headers
        if says_length and self._length(request):
            raise invalid("A GET has no body.")
        self.must_close = False

    async def read(self, request: web.BaseRequest) -> bytes:
        """Returns the body, or raises RequestError if it breaks a limit or is late."""
        # What follows a message of unclear length cannot be told from a request.
        self.must_close = True
        length = self._length(request)
        await _continue(request)
        connection: Any = request.protocol  # a `RestConnection`
        connection.body = request.content
        try:
            if connection.has_ended:
                request.content.feed_eof()
            async with asyncio.timeout(self._limits.body_seconds):
                content = await self._read(request)
        except TimeoutError as error:
            message = f"The body did not arrive within {self._limits.body_seconds:g} seconds."
            raise RequestError(StatusCode.DEADLINE_EXCEEDED, message, 408) from error
        except web.RequestPayloadError as error:
            raise ConnectionResetError from error
        finally:
            connection.body = None
        if len(content) != length:
            raise invalid(f"The body has {len(content)} bytes; its Content-Length is {length}.")
        self.must_close = False
        return content

    async def _read(self, request: web.BaseRequest) -> bytes:
        parts, num_bytes = [], 0
        async for part in request.content.iter_any():
            num_bytes += len(part)
            if num_bytes > self._limits.small_body_bytes:
                more = num_bytes - self.taken_bytes
                if not self._budget.take(more):
                    raise RequestError.of_busy_server("Too many large bodies arrive at a time.")
                self.taken_bytes += more
            parts.append(part)
        return b"".join(parts)

    def _length(self, request: web.BaseRequest) -> int:
        headers, limit = request.headers, self._limits.max_body_bytes
        if not _CONFUSING.isdisjoint(map(str.lower, headers)):
            raise invalid("A header is named like Content-Length or Transfer-Encoding.")
        if "Transfer-Encoding" in headers:
            raise invalid("Chunks are not served. The body must have a Content-Length.")
        if headers.get("Content-Encoding", "identity").lower() != "identity":
            raise invalid("Compressed bodies are not served.")
        lengths = headers.getall("Content-Length", [])
        text = lengths[0] if len(lengths) == 1 else ""
        if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_LENGTH_DIGITS):
            raise invalid("The body must have one Content-Length, a number.")
        if int(text) > limit:
            message = f"The body has {int(text)} bytes; {limit} is the limit."
            raise RequestError(StatusCode.INVALID_ARGUMENT, message, 413)
        return int(text)


async def _continue(request: web.BaseRequest) -> None:
    expected = request.headers.get("Expect", "").lower()
    if not expected:
        return
    if expected != "100-continue":
        message = "Only 100-continue can be expected."
        raise RequestError(StatusCode.INVALID_ARGUMENT, message, 417)
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0


# Bytes that an object of Python takes, by the character that begins or ends it.
_VALUE_BYTES, _LIST_BYTES, _OBJECT_BYTES = 48, 104, 296


def body_memory(content: bytes, max_values: int, max_containers: int) -> int:
    """Roughly how much memory the values of a body take.

    Args:
        content: bytes of JSON.
        max_values: int. How many values there may be.
        max_containers: int. How many lists and objects, which take longest.

    Raises:
        RequestError: If there are more, with the status 413.
    """
    num_lists, num_objects = content.count(b"["), content.count(b"{")
    num_values = content.count(b",") + num_lists + num_objects
    for count, limit, name in (
        (num_values, max_values, "values"),
        (num_lists + num_objects, max_containers, "lists and objects"),
    ):
        if count > limit:
            message = f"The body has about {count} {name}; {limit} is the limit."
            raise RequestError(StatusCode.INVALID_ARGUMENT, message, 413)
    others = _LIST_BYTES * num_lists + _OBJECT_BYTES * num_objects
    return 2 * len(content) + _VALUE_BYTES * num_values + others


def parse_body(content: bytes) -> dict[str, Any]:
    """Returns the values of a body of JSON.

    Raises:
        RequestError: INVALID_ARGUMENT if it is not a JSON object as `parse_json`
            takes it.
    """
    try:
        body = parse_json(content)
    except ValueError as error:
        raise invalid(f"JSON Parse error: {error}") from error
    if not isinstance(body, dict):
        raise invalid("The body must be a JSON object.")
    return body
