"""Text server over HTTP: completions in the form that clients of OpenAI's interface use."""

import asyncio
import contextlib
import dataclasses
import hmac
import json
import logging
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Annotated, Any

import numpy as np
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from txl_tf.causal_lm.text import prompt_tokens
from txl_tf.config.base import DEFAULT_NEW_TOKENS, not_negative, positive
from txl_tf.config.generation import GenerationConfig, new_seed, sample_seeds
from txl_tf.data.tokenizers.tokenizer import checked_token_ids
from txl_tf.errors import UsageError, did_you_mean
from txl_tf.serving.text_engine import (
    MAX_LOGPROBS,
    Completion,
    TextEngine,
    TextPiece,
    TokenScore,
)
from txl_tf.storage.untrusted_files import parse_json

_PAGE = os.path.join(os.path.dirname(__file__), "page.html")
_RETRY_SECONDS = "1"
_BODY_SECONDS = 30.0
_BUSY = "The server is busy; ask again later."
_MAX_SESSION_LETTERS = 100
_MAX_TEXTS = 64  # prompts of a request times `n`
_SCORE_PARTS = ("tokens", "text_offset", "token_logprobs", "top_logprobs")  # of a TokenScore
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
# Of OpenAI's parameters, with the only values that have a meaning here.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "suffix": ("",),
}


class RequestError(Exception):
    """Refused request, with the status of HTTP and the parameter that is wrong."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param = status, param

    def response(self) -> web.Response:
        """Returns the error in OpenAI's form."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.status}
        headers = {"Retry-After": _RETRY_SECONDS} if self.status == 503 else {}
        return web.json_response({"error": error}, status=self.status, headers=headers)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompletionRequest(GenerationConfig):
    """Body of `/v1/completions`: the settings of `GenerationConfig`, and what is answered."""

    prompt: str | tuple[str, ...] | tuple[int, ...] | tuple[tuple[int, ...], ...] = ""
    """Text or token ids, or several of them."""
    max_tokens: Annotated[int, not_negative()] = DEFAULT_NEW_TOKENS
    """Most tokens to write; 0 only reads the prompt."""
    n: Annotated[int, positive()] = 1
    """Texts for each prompt."""
    echo: bool = False
    """Whether texts begin with their prompts."""
    logprobs: Annotated[int | None, not_negative(MAX_LOGPROBS)] = None
    """Alternatives that are returned for each token."""
    stream: bool = False
    """Whether texts are sent as they are written."""
    include_usage: bool = False
    """Whether a stream ends with the counts of tokens."""
    session: str = ""
    """Name of a text that is continued over many requests, with its memory."""
    model: str | None = None
    """Name of the model; any other than the server's is refused."""
    user: str | None = None
    """Not used."""

    @classmethod
    def parse(cls, body: bytes) -> "CompletionRequest":
        """Reads the body of a request; a null is a parameter that is left out.

        Raises:
            RequestError: 400 with the first parameter that is wrong.
        """
        try:
            values = parse_json(body)
            if not isinstance(values, dict):
                raise ValueError("The body must be a JSON object.")
        except ValueError as error:
            raise RequestError(400, f"The body is not a JSON object: {error}") from error
        values = {name: value for name, value in values.items() if value is not None}
        for name, accepted in _NEUTRAL.items():
            if name in values and values.pop(name) not in accepted:
                what = f"`{name}` is not supported; leave it out, or send {accepted[0]!r}."
                raise RequestError(400, what, name)
        options = values.pop("stream_options", {})
        if not isinstance(options, dict) or options.keys() - {"include_usage"}:
            raise RequestError(400, "`stream_options` may have `include_usage`.", "stream_options")
        fields = {field.name: field for field in dataclasses.fields(cls)} | {"include_usage": None}
        unknown = next((name for name in values if name not in fields), None)
        if unknown is not None:
            shown = unknown[:60]
            what = f"Unknown parameter: `{shown}`.{did_you_mean(unknown, list(fields))}"
            raise RequestError(400, what, shown)
        if isinstance(values.get("prompt"), list):
            values["prompt"] = tuple(
                tuple(each) if isinstance(each, list) else each for each in values["prompt"]
            )
        try:
            return cls.from_dict({**values, **options})
        except ValueError as error:
            param = str(error).partition("`")[2].partition("`")[0]
            raise RequestError(400, str(error), param or None) from error

    def prompts(self) -> list[Any]:
        """Returns the prompts of the request, each a text or a tuple of token ids."""
        is_single = isinstance(self.prompt, str) or isinstance((*self.prompt, "")[0], int)
        return [self.prompt] if is_single else list(self.prompt)


class TextServer:
    """HTTP application of a `TextEngine`; with an API key requests must bring it."""

    def __init__(
        self,
        engine: TextEngine,
        model_name: str,
        api_key: str,
        *,
        max_prompt_tokens: int = 1 << 16,
        max_tokens: int = 4096,
        max_body_bytes: int = 4 << 20,
    ) -> None:
        self._engine, self._model_name = engine, model_name
        self._max_prompt_tokens, self._max_tokens = max_prompt_tokens, max_tokens
        self._max_body_bytes = max_body_bytes
        self._api_key = api_key.encode()
        self._created = int(time.time())
        self._requests: Counter[int] = Counter()
        self._seconds = 0.0

    def _application(self) -> web.Application:
        application = web.Application(
            client_max_size=self._max_body_bytes, middlewares=[self._answer_errors]
        )
        application.add_routes(
            [
                web.get("/", self._page),
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.get("/v1/models", self._models),
                web.get("/v1/models/{name}", self._models),
                web.post("/v1/completions", self._completions),
                web.get("/tokenizer_info", self._tokenizer_info),
                web.post("/tokenize", self._tokenize),
                web.post("/detokenize", self._detokenize),
            ]
        )
        return application

    @contextlib.asynccontextmanager
    async def listening(self, sock: socket.socket, shutdown_seconds: float) -> AsyncIterator[None]:
        """Answers on a bound socket for as long as the block runs; then the engine ends."""
        runner = web.AppRunner(
            self._application(),
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=shutdown_seconds,
        )
        logging.getLogger("aiohttp.server").addFilter(_is_ours)
        await runner.setup()
        try:
            await web.SockSite(runner, sock).start()
            yield
        finally:
            await runner.cleanup()
            # Before the loop ends, to which the engine delivers.
            await asyncio.to_thread(self._engine.close, shutdown_seconds)

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        start = time.monotonic()
        response: web.StreamResponse
        try:
            self._check_key(request)
            response = await handler(request)
        except RequestError as error:
            response = error.response()
        except web.HTTPException as error:
            response = RequestError(error.status, error.text or error.reason).response()
        self._requests[response.status] += 1
        self._seconds += time.monotonic() - start
        return response

    def _check_key(self, request: web.Request) -> None:
        if not self._api_key or request.path in ("/", "/health"):
            return
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._api_key):
            raise RequestError(401, "The API key is missing or wrong.")

    async def _page(self, request: web.Request) -> web.StreamResponse:
        return web.FileResponse(_PAGE)

    async def _health(self, request: web.Request) -> web.Response:
        if not self._engine.is_alive:
            raise RequestError(500, "The engine has stopped.")
        return web.json_response({"status": "ok"})

    async def _metrics(self, request: web.Request) -> web.Response:
        values = {
            "txl_prompt_tokens_total": self._engine.num_prompt_tokens,
            "txl_completion_tokens_total": self._engine.num_written_tokens,
            "txl_request_seconds_total": self._seconds,
            **{f"txl_texts_{name}": value for name, value in self._engine.gauges.items()},
        }
        lines = [f"{name} {value}" for name, value in values.items()]
        for status, count in sorted(self._requests.items()):
            lines.append(f'txl_requests_total{{status="{status}"}} {count}')
        return web.Response(text="\n".join([*lines, ""]))

    async def _models(self, request: web.Request) -> web.Response:
        description: dict[str, Any] = {"id": self._model_name, "object": "model"}
        description |= {"created": self._created, "owned_by": "txl-tf"}
        if "name" not in request.match_info:
            return web.json_response({"object": "list", "data": [description]})
        self._check_model(request.match_info["name"])
        return web.json_response(description)

    def _check_model(self, name: str) -> None:
        if name != self._model_name:
            what = f"There is no model `{name[:60]}`; this one is `{self._model_name}`."
            raise RequestError(404, what, "model")

    async def _tokenizer_info(self, request: web.Request) -> web.Response:
        return web.json_response({"eos_token": None, "bos_token": None})

    async def _tokenize(self, request: web.Request) -> web.Response:
        prompt = (await _json_object(request)).get("prompt")
        if not isinstance(prompt, str):
            raise RequestError(400, "`prompt` must be a text.", "prompt")
        ids = await asyncio.to_thread(self._token_ids, prompt) if prompt else np.zeros(0)
        return web.json_response({"tokens": ids.astype(int).tolist(), "count": len(ids)})

    async def _detokenize(self, request: web.Request) -> web.Response:
        tokens = (await _json_object(request)).get("tokens")
        if not isinstance(tokens, list) or not all(type(each) is int for each in tokens):
            raise RequestError(400, "`tokens` must be a list of token ids.", "tokens")
        ids = self._token_ids(tuple(tokens))
        return web.json_response({"prompt": self._engine.tokenizer.decode_text(ids)})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        asked = CompletionRequest.parse(await _body_of(request))
        if asked.model is not None:
            self._check_model(asked.model)
        owner = (str(request.remote), f"cmpl-{secrets.token_hex(12)}")
        completions, pieces = await self._submit(asked, owner)
        answer = {
            "id": owner[1],
            "object": "text_completion",
            "created": int(time.time()),
            "model": self._model_name,
        }
        try:
            if asked.stream:
                return await self._stream(request, asked, answer, completions, pieces)
            return await self._collect(asked, answer, completions, pieces)
        finally:
            for completion in completions:
                completion.is_cancelled = True

    async def _submit(
        self, asked: CompletionRequest, owner: tuple[str, str]
    ) -> tuple[list[Completion], AsyncIterator[TextPiece]]:
        """Queues the texts of a request; returns them and the pieces that are written."""
        prompts = asked.prompts()
        count = len(prompts) * asked.n
        if asked.max_tokens > self._max_tokens:
            what = f"`max_tokens` must be at most {self._max_tokens} on this server."
            raise RequestError(400, what, "max_tokens")
        if not 1 <= count <= _MAX_TEXTS:
            what = f"A request must ask for 1 to {_MAX_TEXTS} texts. Received: {count}"
            raise RequestError(400, what, "prompt")
        if asked.session and (count > 1 or len(asked.session) > _MAX_SESSION_LETTERS):
            what = f"A session has one text, and a name of at most {_MAX_SESSION_LETTERS} letters."
            raise RequestError(400, what, "session")
        if not self._engine.has_place(owner[0]):  # before the prompts are read
            raise RequestError(503, _BUSY)
        token_ids = await asyncio.to_thread(
            lambda: [self._token_ids(prompt) if prompt else None for prompt in prompts]
        )
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[TextPiece]()
        seeds = sample_seeds(new_seed() if asked.seed is None else asked.seed, asked.n)
        completions: list[Completion] = []
        for ids in token_ids:
            if ids is None and not (asked.session and self._engine.has_session(asked.session)):
                what = "The prompt must have a token: there is no such session to continue."
                raise RequestError(404 if asked.session else 400, what, "prompt")
            for seed in seeds:
                completions.append(
                    Completion(
                        index=len(completions),
                        prompt_ids=np.zeros((0,), np.int32) if ids is None else ids,
                        settings=asked,
                        seed=seed,
                        deliver=lambda piece: loop.call_soon_threadsafe(queue.put_nowait, piece),
                        owner=owner,
                        logprobs=asked.logprobs,
                        scores_prompt=asked.echo and asked.logprobs is not None,
                        session=asked.session,
                    )
                )
        if not self._engine.submit(completions):
            raise RequestError(503, _BUSY)
        return completions, _pieces(queue, len(completions))

    def _token_ids(self, prompt: str | tuple[int, ...]) -> np.ndarray:
        try:
            if isinstance(prompt, str):
                ids = prompt_tokens(self._engine.tokenizer, prompt)
            else:
                ids = checked_token_ids(prompt, self._engine.vocabulary_size)
        except UsageError as error:
            raise RequestError(400, error.what, "prompt") from error
        except (ValueError, OverflowError) as error:
            raise RequestError(400, str(error), "prompt") from error
        if len(ids) > self._max_prompt_tokens:
            most = self._max_prompt_tokens
            what = f"A prompt must have at most {most} tokens. Received: {len(ids)}"
            raise RequestError(400, what, "prompt")
        return ids.astype(np.int32)

    async def _collect(
        self,
        asked: CompletionRequest,
        answer: dict[str, Any],
        completions: list[Completion],
        pieces: AsyncIterator[TextPiece],
    ) -> web.Response:
        choices = [self._choice(asked, TextPiece(row.index), row) for row in completions]
        async for piece in pieces:
            choice = choices[piece.choice]
            choice["text"] += piece.text
            choice["finish_reason"] = piece.finish_reason
            if choice["logprobs"] is not None:
                for name, values in _logprobs(piece.scores).items():
                    choice["logprobs"][name] += values
        answer |= {"choices": choices, "usage": _usage(asked, completions)}
        if asked.session:
            tokens = self._engine.session_tokens(asked.session)
            answer["session"] = {"name": asked.session, "tokens": tokens}
        return web.json_response(answer)

    def _choice(
        self, asked: CompletionRequest, piece: TextPiece, beginning: Completion | None
    ) -> dict[str, Any]:
        """Returns a choice with a piece, after the echo of the prompt where it begins."""
        text = piece.text
        if beginning is not None and asked.echo:
            text = self._engine.tokenizer.decode_text(beginning.prompt_ids) + text
        return {
            "index": piece.choice,
            "text": text,
            "logprobs": None if asked.logprobs is None else _logprobs(piece.scores),
            "finish_reason": piece.finish_reason,
        }

    async def _stream(
        self,
        request: web.Request,
        asked: CompletionRequest,
        answer: dict[str, Any],
        completions: list[Completion],
        pieces: AsyncIterator[TextPiece],
    ) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        )
        begun: set[int] = set()

        async def send(event: Any) -> None:
            if not response.prepared:
                await response.prepare(request)
            await response.write(f"data: {json.dumps(event)}\n\n".encode())

        try:
            async for piece in pieces:
                beginning = None if piece.choice in begun else completions[piece.choice]
                begun.add(piece.choice)
                await send({**answer, "choices": [self._choice(asked, piece, beginning)]})
        except RequestError as error:
            if not response.prepared:
                raise
            await send(json.loads(error.response().body))  # type: ignore[arg-type]
        if asked.include_usage:
            await send({**answer, "choices": [], "usage": _usage(asked, completions)})
        await response.write(b"data: [DONE]\n\n")
        return response


async def _pieces(queue: asyncio.Queue[TextPiece], num_texts: int) -> AsyncIterator[TextPiece]:
    while num_texts:
        piece = await queue.get()
        if piece.error is not None:
            raise RequestError(500, f"The text cannot be written: {piece.error}")
        num_texts -= piece.finish_reason is not None
        yield piece


async def _body_of(request: web.Request) -> bytes:
    try:
        return await asyncio.wait_for(request.read(), _BODY_SECONDS)
    except TimeoutError as error:
        raise RequestError(408, f"The body took more than {_BODY_SECONDS} s.") from error
    except web.RequestPayloadError as error:
        raise RequestError(400, "The body does not have its Content-Encoding.") from error


def _is_ours(record: logging.LogRecord) -> bool:
    """Returns False for a request that is not HTTP, of which aiohttp logs the traceback."""
    faults = (HttpProcessingError, web.RequestPayloadError)
    return not (record.exc_info and isinstance(record.exc_info[1], faults))


async def _json_object(request: web.Request) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        values = parse_json(await _body_of(request))
        if isinstance(values, dict):
            return values
    raise RequestError(400, "The body must be a JSON object.")


def _logprobs(scores: Sequence[TokenScore]) -> dict[str, list[Any]]:
    """Returns the scores of tokens in OpenAI's form, a list for each of their parts."""
    columns = zip(*scores, strict=True) if scores else ((),) * len(_SCORE_PARTS)
    return {name: list(values) for name, values in zip(_SCORE_PARTS, columns, strict=True)}


def _usage(asked: CompletionRequest, completions: list[Completion]) -> dict[str, int]:
    # Several texts of one prompt count it once.
    prompt = sum(len(row.prompt_ids) for row in completions[:: asked.n])
    written = sum(row.num_written for row in completions)
    counts = {"prompt_tokens": prompt, "completion_tokens": written}
    return {**counts, "total_tokens": prompt + written}
