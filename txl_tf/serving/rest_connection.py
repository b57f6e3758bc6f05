"""A connection of the REST interface."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from aiohttp import web

from txl_tf.serving.server_limits import ServerLimits

_LOGGER = logging.getLogger(__name__)
_IDLE_AFTER_END_SECONDS = 0.2
_LINGERING_SECONDS = 2.0
_MAX_SHOWN = 200


class RestConnection(web.RequestHandler):
    """Answers a client that sends no more, too, and ends where it asks nothing.

    Args:
        server: `aiohttp.web.Server`.
        loop: the event loop.
        limits: `ServerLimits`.
        on_lost: function that is called when the connection has ended.

    Attributes:
        has_ended: bool. Whether the client will send no more.
        is_answering: bool. Set while a request is at hand.
        body: optional stream of the body that is being read.
    """

    def __init__(
        self,
        server: web.Server,
        loop: asyncio.AbstractEventLoop,
        limits: ServerLimits,
        on_lost: Callable[[], None],
    ) -> None:
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=limits.idle_seconds,
            lingering_time=_LINGERING_SECONDS,
            auto_decompress=False,
            access_log=None,  # type: ignore[arg-type]
        )
        self.has_ended = False
        self.is_answering = False
        self.body: Any = None
        self._clock = loop
        self._on_lost = on_lost

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forgets the connection."""
        super().connection_lost(exc)
        self._on_lost()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answers what is not HTTP like every other error; it is of no use in a log."""
        words = (message or str(exc) or "Malformed request.").strip().split("\n")[0]
        response = web.json_response({"error": words[:_MAX_SHOWN]}, status=status)
        response.force_close()
        return response

    def log_exception(self, *arguments: Any, **settings: Any) -> None:
        """Logs in a line what became of a connection, such as that its client left."""
        _LOGGER.warning("A connection ended: %r", settings.get("exc_info"))

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keeps the connection until the request at hand is answered."""
        self.has_ended = True
        if self.body is not None:
            self.body.feed_eof()
        self._clock.call_later(_IDLE_AFTER_END_SECONDS, self._close_if_idle)
        return True

    def _close_if_idle(self) -> None:
        if not self.is_answering:
            self.force_close()
