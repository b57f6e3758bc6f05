"""REST interface of the server: paths, status codes, connections."""

import asyncio
import json
import logging
import re
import socket
import threading
import urllib.parse
from collections.abc import Callable
from typing import Any, cast

from aiohttp import web
from google.protobuf import json_format

from txl_tf.serving.errors import RequestError, StatusCode
from txl_tf.serving.json_tensors import arrays_of_request, json_of_answer
from txl_tf.serving.model_versions import DEFAULT_SIGNATURE
from txl_tf.serving.request_engine import RequestEngine, ServerLimits
from txl_tf.serving.request_shapes import inputs_explained, invalid
from txl_tf.serving.rest_bodies import BodyAccount, RestBodies, body_memory, parse_body

_LINGERING_SECONDS = 2.0


class CrowdedConnection(asyncio.Protocol):
    """Connection beyond the limit: answers that the server is full, and closes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        content = json.dumps({"error": "There are too many connections. Ask again later."})
        head = (
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        )
        writer = cast(asyncio.WriteTransport, transport)
        writer.write((head + content).encode())
        writer.write_eof()
        # What the client still sends is read, or it would lose the answer.
        asyncio.get_running_loop().call_later(_LINGERING_SECONDS, writer.abort)


_LOGGER = logging.getLogger(__name__)
_IDLE_AFTER_END_SECONDS = 0.2
_MAX_SHOWN = 200


class RestConnection(web.RequestHandler):
    """HTTP connection that answers half-closed clients and closes when it is idle.

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


_PATH = re.compile(
    r"/v1/models/(?P<name>[^/:?#]+)(?:/versions/(?P<version>[0-9]{1,18}))?(?P<rest>[/:?#].*)?"
)
_BACKLOG = 1024
# Numbers are longer as text, and longer still as objects.
_COPIES_AS_JSON = 2


class RestService:
    """REST service on this machine, on one event loop.

    `POST /v1/models/NAME[/versions/N]:predict` asks a signature,
    `GET /v1/models/NAME[/versions/N]` says what is loaded, and
    `GET /v1/models/NAME[/versions/N]/metadata` what its signatures are. Errors
    are `{"error": ...}`. Messages must say their length; chunks are refused.

    Args:
        model_name: str. The name of the model in paths.
        engine: `RequestEngine`.
        port: int. Port of 127.0.0.1; 0 for a free one.

    Attributes:
        port: int. The port.

    Raises:
        OSError: If the port is taken.
    """

    def __init__(self, model_name: str, engine: RequestEngine, port: int) -> None:
        self._model_name = model_name
        self._engine = engine
        self._limits = engine.limits
        self._bodies = RestBodies(engine.limits)
        self._socket = _listening_socket(port, engine.limits.answer_seconds)
        self.port = int(self._socket.getsockname()[1])
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_log_quietly)
        self._thread = threading.Thread(target=self._run, name="rest", daemon=True)
        self._is_ready = threading.Event()
        self._grace_seconds: asyncio.Future[float] | None = None
        self._num_connections = 0

    def start(self) -> None:
        """Answers from now on."""
        self._thread.start()
        self._is_ready.wait()

    def stop(self, grace_seconds: float) -> None:
        """Answers no more, after `grace_seconds` for the requests that run."""
        if self._thread.is_alive() and self._grace_seconds is not None:
            self._loop.call_soon_threadsafe(self._grace_seconds.set_result, grace_seconds)
            self._thread.join(3 * grace_seconds)
        self._socket.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._grace_seconds = self._loop.create_future()
        server = _Server(self)
        listener = await self._loop.create_server(server, sock=self._socket, backlog=_BACKLOG)
        self._is_ready.set()
        grace_seconds = await self._grace_seconds
        listener.close()
        await server.shutdown(grace_seconds)

    def connection(self, server: web.Server) -> asyncio.Protocol:
        """Creates the protocol of the next connection, or refuses it at the limit."""
        if self._num_connections >= self._limits.max_connections:
            return CrowdedConnection()
        self._num_connections += 1
        return RestConnection(server, self._loop, self._limits, self._forget_connection)

    def _forget_connection(self) -> None:
        self._num_connections -= 1

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers a request, and sends and returns the answer."""
        connection = cast(RestConnection, request.protocol)
        connection.is_answering = True
        try:
            async with self._bodies.account() as account:
                status, content = await self._content(request, account)
                response = web.Response(status=status, body=content, content_type=_JSON)
                if connection.has_ended or not request.content.is_eof() or account.must_close:
                    response.force_close()
                try:
                    async with asyncio.timeout(self._limits.answer_seconds):
                        await response.prepare(request)
                        await response.write_eof()
                except TimeoutError:
                    connection.force_close()
                return response
        finally:
            connection.is_answering = False

    async def _content(self, request: web.BaseRequest, account: BodyAccount) -> tuple[int, bytes]:
        try:
            if request.method == "GET":
                account.require_no_body(request)
                return 200, _encoded(self._get(request.raw_path))
            if request.method != "POST":
                account.must_close = True
                raise RequestError(StatusCode.UNIMPLEMENTED, "Only GET and POST are served.", 405)
            body = await account.read(request)
            version, rest = self._target(request.raw_path)
            if rest != ":predict":
                raise _malformed(request.raw_path)
            future = self._engine.submit(lambda: self._predict(body, version))
            return 200, await asyncio.wrap_future(future)
        except RequestError as error:
            return error.http_status, _encoded({"error": error.message})
        except ConnectionError:
            raise  # the client has left
        except Exception as error:  # a request must not end the connections of others
            _LOGGER.exception("A request failed.")
            return 500, _encoded({"error": f"{type(error).__name__}: {error}"})

    def _target(self, path: str) -> tuple[int | None, str]:
        match = _PATH.fullmatch(path)
        if match is None:
            raise _malformed(path)
        if urllib.parse.unquote(match["name"]) != self._model_name:
            message = f"Servable not found: {match['name'][:_MAX_SHOWN]}."
            raise RequestError(StatusCode.NOT_FOUND, message)
        return (int(match["version"]) if match["version"] else None), match["rest"] or ""

    def _get(self, path: str) -> dict[str, Any]:
        version, rest = self._target(path)
        if rest == "":
            return self._status(version)
        if rest != "/metadata":
            raise _malformed(path)
        loaded = self._engine.versions.current(version)
        signatures = {name: _as_dict(each) for name, each in loaded.signatures.items()}
        spec = {"name": self._model_name, "version": str(loaded.number), "signature_name": ""}
        metadata = {"signature_def": {"signature_def": signatures}}
        return {"model_spec": spec, "metadata": metadata}

    def _status(self, version: int | None) -> dict[str, Any]:
        """Returns the version that answers, and those that were not loaded."""
        found = {}
        refused = self._engine.versions.refused
        for number, why in refused.items():
            found[number] = _state(number, "END", "FAILED_PRECONDITION", why)
        if self._engine.versions.has_version:
            number = self._engine.versions.current().number
            found = {number: _state(number, "AVAILABLE", "OK", ""), **found}
        if version is not None:
            if version not in found:
                self._engine.versions.current(version)
            return {"model_version_status": [found[version]]}
        if not found:
            self._engine.versions.current()
        return {"model_version_status": list(found.values())}

    def _predict(self, content: bytes, version: int | None) -> bytes:
        limits = self._limits
        memory = body_memory(content, limits.max_json_values, limits.max_json_containers)
        with self._engine.lent(memory):
            body = parse_body(content)
            name = body.get("signature_name", "")
            if not isinstance(name, str):
                raise invalid("`signature_name` must be a string.")
            loaded = self._engine.versions.current(version)
            signature = loaded.signature(name)
            with inputs_explained(name or DEFAULT_SIGNATURE, signature):
                inputs = arrays_of_request(body, signature)
            in_rows = "instances" in body
            del body
        shapes = {key: array.shape for key, array in inputs.items()}
        texts = (array for array in inputs.values() if array.dtype.kind == "O")
        longest = max((len(text) for array in texts for text in array.flat), default=0)

        def compute() -> bytes:
            return _encoded(json_of_answer(loaded.predict(name, inputs), in_rows=in_rows))

        return self._engine.within_memory(
            loaded, name, shapes, compute, copies=_COPIES_AS_JSON, text_bytes=longest
        )


class _Server(web.Server):
    def __init__(self, service: RestService) -> None:
        super().__init__(service.answer, handler_cancellation=True)
        self._service = service

    def __call__(self) -> Any:
        return self._service.connection(self)


def _listening_socket(port: int, answer_seconds: float) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # For the last bytes of an answer that is not read; connections inherit it.
        milliseconds = int(1000 * answer_seconds)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    try:
        listening.bind(("127.0.0.1", port))
        # Others may not listen where this one will.
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


_JSON = "application/json"


def _encoded(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer).encode()


def _as_dict(definition: Any) -> dict[str, Any]:
    return json_format.MessageToDict(
        definition,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )


def _state(number: int, state: str, code: str, message: str) -> dict[str, Any]:
    status = {"error_code": code, "error_message": message}
    return {"version": str(number), "state": state, "status": status}


def _malformed(path: str) -> RequestError:
    return invalid(f"Malformed request: {path[:_MAX_SHOWN]}")


def _log_quietly(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    _LOGGER.warning("%s: %s", context.get("message"), context.get("exception"))
