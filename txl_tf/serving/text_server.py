"""Text server over HTTP, in the form of OpenAI's completions."""

import asyncio
import contextlib
import hmac
import json
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import numpy as np
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from txl_tf.serving.completion import Completion, TextPiece, TokenScore
from txl_tf.serving.completion_request import (
    CompletionRequest,
    RequestError,
    json_object,
    parse_request,
    require,
)
from txl_tf.serving.metrics import ServerMetrics

_PAGE = os.path.join(os.path.dirname(__file__), "page.html")
_BODY_SECONDS = 30.0
SHUTDOWN_SECONDS = 2.0
"""Time that requests, and then the engine, have to end."""
_OPEN_PATHS = ("/", "/health", "/ping")
_MAX_SESSION_LETTERS = 100
# Most texts of a request: its prompts times `n`.
_MAX_TEXTS = 64
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class TextServer:
    """HTTP application of an `engine`, which is `None` while the model is loading.

    Requests need the API key, except on `_OPEN_PATHS`. The header `client_header` names the client
    that shares the engine with others; by default its address is the name. Pages of
    `allowed_origins` may send requests too.
    """

    def __init__(
        self,
        model_name: str,
        api_key: str,
        *,
        version: str = "",
        client_header: str = "",
        allowed_origins: Sequence[str] = (),
        max_prompt_tokens: int = 1 << 16,
        max_tokens: int = 4096,
        max_body_bytes: int = 4 << 20,
    ) -> None:
        self.engine: Any = None
        self.metrics = ServerMetrics()
        self._model_name, self._version_name = model_name, version
        self._client_header, self._allowed_origins = client_header, allowed_origins
        self._max_prompt_tokens, self._max_tokens = max_prompt_tokens, max_tokens
        self._max_body_bytes = max_body_bytes
        self._api_key = api_key.encode()
        self._created = int(time.time())

    def application(self) -> web.Application:
        """Returns the application, which closes the engine when it ends."""
        logging.getLogger("aiohttp.server").addFilter(_is_of_server)
        application = web.Application(
            client_max_size=self._max_body_bytes, middlewares=[self._count]
        )
        application.add_routes(
            [
                web.get("/", self._page),
                web.get("/health", self._health),
                web.get("/ping", self._health),
                web.get("/version", self._version),
                web.get("/metrics", self._show_metrics),
                web.get("/v1/models", self._models),
                web.get("/v1/models/{name:.+}", self._model),
                web.post("/v1/completions", self._completions),
                web.get("/tokenizer_info", self._tokenizer_info),
                web.post("/tokenize", self._tokenize),
                web.post("/detokenize", self._detokenize),
            ]
        )
        application.on_response_prepare.append(self._allow_origin)
        application.on_shutdown.append(self._close)
        return application

    async def _close(self, _: web.Application) -> None:
        if self.engine is not None:
            await asyncio.to_thread(self.engine.close, SHUTDOWN_SECONDS)

    async def _allow_origin(self, request: web.Request, response: web.StreamResponse) -> None:
        if self._is_allowed(request):
            header_names = request.headers.get("Access-Control-Request-Headers", "")
            response.headers["Access-Control-Allow-Origin"] = request.headers["Origin"]
            response.headers["Access-Control-Allow-Headers"] = header_names
            response.headers["Vary"] = "Origin"

    def _is_allowed(self, request: web.Request) -> bool:
        origin = request.headers.get("Origin")
        return origin is not None and not {"*", origin}.isdisjoint(self._allowed_origins)

    @web.middleware
    async def _count(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        status = "500"
        try:
            response = await self._answer(request, handler)
            status = str(response.status)
            return response
        except (asyncio.CancelledError, ConnectionError):
            status = "499"  # the client left
            raise
        finally:
            self.metrics.requests.labels(status).inc()

    async def _answer(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        path = request.path[:60]
        if request.method == "OPTIONS" and self._is_allowed(request):
            return web.Response(status=204)
        try:
            self._check_key(request)
            require(self.engine is not None, "The model is loading; ask again later.", status=503)
            return await handler(request)
        except web.HTTPMethodNotAllowed as error:
            return _refusal(
                RequestError(405, f"{path} needs {' or '.join(sorted(error.allowed_methods))}."),
                Allow=error.headers["Allow"],
            )
        except web.HTTPNotFound:
            what = f"There is no path {path}. This server has no chat: it continues the `prompt` of"
            return _refusal(RequestError(404, f"{what} a request to /v1/completions."))
        except web.HTTPException as error:
            return _refusal(RequestError(error.status, error.text or error.reason))
        except RequestError as error:
            return _refusal(error)

    def _check_key(self, request: web.Request) -> None:
        if not self._api_key or request.path in _OPEN_PATHS:
            return
        key = request.headers.get("Authorization", "").removeprefix("Bearer ")
        is_right = hmac.compare_digest(key.encode("utf-8", "surrogateescape"), self._api_key)
        require(is_right, "The API key is missing or wrong.", status=401)

    async def _page(self, request: web.Request) -> web.StreamResponse:
        return web.FileResponse(_PAGE)

    async def _health(self, request: web.Request) -> web.Response:
        require(
            self.engine.thread.is_alive(), "The engine has stopped; restart the server.", status=500
        )
        return web.json_response({"status": "ok"})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self._version_name})

    async def _show_metrics(self, request: web.Request) -> web.Response:
        text = generate_latest(self.metrics.registry)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._description()]})

    async def _model(self, request: web.Request) -> web.Response:
        self._check_model(request.match_info["name"])
        return web.json_response(self._description())

    def _description(self) -> dict[str, Any]:
        return {
            "id": self._model_name,
            "object": "model",
            "created": self._created,
            "owned_by": "txl-tf",
        }

    def _check_model(self, name: str) -> None:
        require(
            name == self._model_name,
            f"The server has no model `{name[:60]}`, only `{self._model_name}`.",
            "model",
            status=404,
        )

    async def _tokenizer_info(self, request: web.Request) -> web.Response:
        return web.json_response({"eos_token": self._text_before_others(), "bos_token": None})

    def _text_before_others(self) -> str | None:
        """Returns the text of an end token or a line end, which clients put before a text."""
        tokenizer, end = self.engine.tokenizer, self.engine.tokenizer.end_token_id
        for text in ("\n" if end is None else tokenizer.decode([end]), "\n", " "):
            with contextlib.suppress(RequestError):
                if len(self._token_ids(text)):
                    return text
        return tokenizer.decode([0])

    async def _tokenize(self, request: web.Request) -> web.Response:
        prompt: Any = json_object(await _body_of(request)).get("prompt")
        require(isinstance(prompt, str), "`prompt` must be a text.", "prompt")
        ids = await asyncio.to_thread(self._token_ids, prompt)
        return web.json_response({"tokens": ids.tolist(), "count": len(ids)})

    async def _detokenize(self, request: web.Request) -> web.Response:
        tokens: Any = json_object(await _body_of(request)).get("tokens")
        are_ids = isinstance(tokens, list) and all(type(each) is int for each in tokens)
        require(are_ids, "`tokens` must be a list of token ids.", "tokens")
        ids = self._token_ids(tuple(tokens))
        return web.json_response({"prompt": self.engine.tokenizer.decode_text(ids)})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        # 1. The request and its client.
        settings = parse_request(await _body_of(request))
        self._check_model(settings.model or self._model_name)
        # A proxy adds the address of its client at the end.
        names = request.headers.getall(self._client_header, [str(request.remote)])
        owner = (names[-1].rpartition(",")[2].strip(), f"cmpl-{secrets.token_hex(12)}")
        prompts = await self._prompts(settings)
        # 2. The thread of the engine writes; its pieces come through a queue of this loop.
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[TextPiece] = asyncio.Queue()

        def deliver(piece: TextPiece) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, piece)

        completions = self.engine.submit(settings, prompts, owner, deliver)
        answer: dict[str, Any] = {
            "id": owner[1],
            "object": "text_completion",
            "created": int(time.time()),
            "model": self._model_name,
        }
        # 3. Pieces are sent as they come, or collected. A client that leaves cancels its texts.
        pieces = _pieces(queue, len(completions))
        try:
            if settings.stream:
                return await _stream(request, answer, completions, pieces)
            texts: list[list[TextPiece]] = [[] for _ in completions]
            async for piece in pieces:
                texts[piece.choice].append(piece)
        finally:
            for completion in completions:
                completion.is_over = True
            seconds = time.monotonic() - completions[0].submit_seconds
            self.metrics.request_seconds.observe(seconds)
        # 4. The whole answer.
        choices = [_choice(settings, each) for each in texts]
        answer |= {"choices": choices, "usage": _usage(completions)}
        if settings.session:
            num_tokens = completions[0].next_state().num_tokens
            answer["session"] = {"name": settings.session, "tokens": num_tokens}
        return web.json_response(answer)

    async def _prompts(self, settings: CompletionRequest) -> list[np.ndarray]:
        """Checks the limits of a request; returns the tokens of each prompt, perhaps none."""
        prompts: Any = settings.prompt
        if isinstance(prompts, str) or isinstance((*prompts, "")[0], int):
            prompts = [prompts]
        count = len(prompts) * settings.n
        require(
            settings.max_tokens <= self._max_tokens,
            f"`max_tokens` must be at most {self._max_tokens} on this server.",
            "max_tokens",
        )
        require(
            1 <= count <= _MAX_TEXTS,
            f"A request must ask for 1 to {_MAX_TEXTS} texts. Received: {count}",
            "prompt",
        )
        what = f"`session` needs one text and a name of at most {_MAX_SESSION_LETTERS} letters."
        is_valid = count == 1 and len(settings.session) <= _MAX_SESSION_LETTERS
        require(is_valid or not settings.session, what, "session")
        ids = await asyncio.to_thread(lambda: [self._token_ids(prompt) for prompt in prompts])
        has_tokens = bool(settings.session) or all(map(len, ids))
        require(has_tokens, "The prompt must have a token.", "prompt")
        return ids

    def _token_ids(self, prompt: str | tuple[int, ...]) -> np.ndarray:
        ids = self.engine.encode(prompt)
        require(
            len(ids) <= self._max_prompt_tokens,
            f"A prompt must have at most {self._max_prompt_tokens} tokens. Received: {len(ids)}",
            "prompt",
        )
        return ids


async def _pieces(queue: asyncio.Queue[TextPiece], num_texts: int) -> AsyncIterator[TextPiece]:
    """Yields the pieces of all texts as they are written."""
    while num_texts:
        piece = await queue.get()
        if piece.error is not None:
            raise piece.error
        num_texts -= piece.finish_reason is not None
        yield piece


def _choice(settings: CompletionRequest, pieces: Sequence[TextPiece]) -> dict[str, Any]:
    """Returns successive pieces of a text in OpenAI's form."""
    scores = [score for piece in pieces for score in piece.scores]
    # The fields of a score have the names of OpenAI's lists.
    logprobs = {name: [getattr(each, name) for each in scores] for name in TokenScore._fields}
    choice = {
        "index": pieces[0].choice,
        "text": "".join(piece.text for piece in pieces),
        "logprobs": None if settings.logprobs is None else logprobs,
        "finish_reason": pieces[-1].finish_reason,
    }
    if settings.return_token_ids:
        choice["token_ids"] = [token_id for piece in pieces for token_id in piece.token_ids]
    return choice


def _usage(completions: Sequence[Completion]) -> dict[str, int]:
    # Several texts of one prompt count it once.
    num_prompt = sum(len(row.prompt_ids) for row in completions[:: completions[0].settings.n])
    num_written = sum(len(row.written_ids) for row in completions)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_written,
        "total_tokens": num_prompt + num_written,
    }


async def _stream(
    request: web.Request,
    answer: dict[str, Any],
    completions: Sequence[Completion],
    pieces: AsyncIterator[TextPiece],
) -> web.StreamResponse:
    """Sends the pieces as events; an error after the first event becomes an event too."""
    settings = completions[0].settings
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
    )

    async def send(event: str) -> None:
        if not response.prepared:
            await response.prepare(request)
        await response.write(f"data: {event}\n\n".encode())

    try:
        async for piece in pieces:
            event = {**answer, "choices": [_choice(settings, [piece])]}
            if settings.stream_options.continuous_usage_stats:
                event["usage"] = _usage(completions)
            await send(json.dumps(event))
        if settings.stream_options.include_usage:
            await send(json.dumps({**answer, "choices": [], "usage": _usage(completions)}))
    except RequestError as error:
        if not response.prepared:
            raise
        await send(json.dumps(_body(error)))
    await send("[DONE]")
    return response


def _body(error: RequestError) -> dict[str, Any]:
    """Returns an error in OpenAI's form."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    values = {"message": str(error), "type": kind, "param": error.param, "code": error.status}
    return {"error": values}


def _refusal(error: RequestError, **headers: str) -> web.Response:
    headers |= {"Retry-After": "1"} if error.status == 503 else {}
    return web.json_response(_body(error), status=error.status, headers=headers)


async def _body_of(request: web.Request) -> bytes:
    try:
        return await asyncio.wait_for(request.read(), _BODY_SECONDS)
    except TimeoutError as error:
        raise RequestError(408, f"The body did not arrive in {_BODY_SECONDS:g} seconds.") from error
    except web.RequestPayloadError as error:
        raise RequestError(400, "The Content-Encoding does not fit the body.") from error


def _is_of_server(record: logging.LogRecord) -> bool:
    """Returns False for a fault of a client, whose traceback aiohttp would log."""
    faults = (HttpProcessingError, web.RequestPayloadError, ConnectionError)
    return not (record.exc_info and isinstance(record.exc_info[1], faults))
