"""Text server over HTTP: completions in the form that clients of OpenAI's interface use."""

import asyncio
import dataclasses
import hmac
import itertools
import json
import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import numpy as np
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from txl_tf.causal_lm.text import prompt_tokens
from txl_tf.config.generation import new_seed, sample_seeds
from txl_tf.data.tokenizers.tokenizer import checked_token_ids
from txl_tf.errors import UsageError, did_you_mean
from txl_tf.serving.text_engine import (
    Completion,
    CompletionRequest,
    TextEngine,
    TextPiece,
    TokenScore,
)
from txl_tf.storage.untrusted_files import parse_json

_PAGE = os.path.join(os.path.dirname(__file__), "page.html")
_RETRY_SECONDS = "1"
_BODY_SECONDS = 30.0
_BUSY = "The server is busy; ask again later."
SHUTDOWN_SECONDS = 2.0
"""Time for requests and for the engine to end."""
_MAX_SESSION_LETTERS = 100
_MAX_TEXTS = 64  # prompts of a request times `n`
_SCORE_PARTS = ("tokens", "text_offset", "token_logprobs", "top_logprobs")  # of a TokenScore
_Events = AsyncIterator[dict[str, Any]]
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

    def body(self) -> dict[str, Any]:
        """Returns the error in OpenAI's form."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.status}
        return {"error": error}

    def response(self) -> web.Response:
        """Returns the answer to the request."""
        headers = {"Retry-After": _RETRY_SECONDS} if self.status == 503 else {}
        return web.json_response(self.body(), status=self.status, headers=headers)


def parse_request(body: bytes) -> CompletionRequest:
    """Reads the body of a request, without nulls; RequestError names the first wrong parameter."""
    values = {name: value for name, value in _json_object(body).items() if value is not None}
    for name, accepted in _NEUTRAL.items():
        if name in values and values.pop(name) not in accepted:
            what = f"`{name}` is not supported; leave it out, or send {accepted[0]!r}."
            raise RequestError(400, what, name)
    options = values.pop("stream_options", {})
    if not isinstance(options, dict) or options.keys() - {"include_usage"}:
        raise RequestError(400, "`stream_options` may only have `include_usage`.", "stream_options")
    known = {field.name for field in dataclasses.fields(CompletionRequest)} - {"include_usage"}
    unknown = next((name[:60] for name in values if name not in known), None)
    if unknown is not None:
        what = f"Unknown parameter: `{unknown}`.{did_you_mean(unknown, list(known))}"
        raise RequestError(400, what, unknown)
    try:
        return CompletionRequest.from_dict({**values, **options})
    except ValueError as error:
        param = str(error).partition("`")[2].partition("`")[0]
        raise RequestError(400, str(error), param or None) from error


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

    def application(self) -> web.Application:
        """Returns the application; the engine ends with it."""
        logging.getLogger("aiohttp.server").addFilter(_is_ours)
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

        async def close(_: web.Application) -> None:
            # Before the loop ends, to which the engine delivers.
            await asyncio.to_thread(self._engine.close, SHUTDOWN_SECONDS)

        application.on_cleanup.append(close)
        return application

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
        prompt = _json_object(await _body_of(request)).get("prompt")
        if not isinstance(prompt, str):
            raise RequestError(400, "`prompt` must be a text.", "prompt")
        ids = await asyncio.to_thread(self._token_ids, prompt)
        return web.json_response({"tokens": ids.tolist(), "count": len(ids)})

    async def _detokenize(self, request: web.Request) -> web.Response:
        tokens = _json_object(await _body_of(request)).get("tokens")
        if not isinstance(tokens, list) or not all(type(each) is int for each in tokens):
            raise RequestError(400, "`tokens` must be a list of token ids.", "tokens")
        ids = self._token_ids(tuple(tokens))
        return web.json_response({"prompt": self._engine.tokenizer.decode_text(ids)})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        asked = parse_request(await _body_of(request))
        if asked.model is not None:
            self._check_model(asked.model)
        owner = (str(request.remote), f"cmpl-{secrets.token_hex(12)}")
        queue: asyncio.Queue[TextPiece] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        prompts = await self._prompts(asked, owner[0])
        seeds = sample_seeds(new_seed() if asked.seed is None else asked.seed, asked.n)
        completions = [
            Completion(
                index=index,
                prompt_ids=prompt_ids,
                settings=asked,
                seed=seed,
                deliver=lambda piece: loop.call_soon_threadsafe(queue.put_nowait, piece),
                owner=owner,
            )
            for index, (prompt_ids, seed) in enumerate(itertools.product(prompts, seeds))
        ]
        if not self._engine.submit(completions):
            raise RequestError(503, _BUSY)
        answer = {
            "id": owner[1],
            "object": "text_completion",
            "created": int(time.time()),
            "model": self._model_name,
        }
        events = self._events(asked, completions, queue)
        try:
            if asked.stream:
                return await _streamed(request, asked, answer, events)
            return await self._collected(asked, answer, events)
        finally:
            for completion in completions:
                completion.is_cancelled = True

    async def _prompts(self, asked: CompletionRequest, client: str) -> list[np.ndarray]:
        """Returns the tokens of each prompt, none where a session is continued."""
        prompts = asked.prompts()
        count = len(prompts) * asked.n
        if asked.max_tokens > self._max_tokens:
            what = f"`max_tokens` must be at most {self._max_tokens} on this server."
            raise RequestError(400, what, "max_tokens")
        if not 1 <= count <= _MAX_TEXTS:
            what = f"A request must ask for 1 to {_MAX_TEXTS} texts. Received: {count}"
            raise RequestError(400, what, "prompt")
        if asked.session and (count > 1 or len(asked.session) > _MAX_SESSION_LETTERS):
            what = f"`session` needs one text and a name of at most {_MAX_SESSION_LETTERS} letters."
            raise RequestError(400, what, "session")
        if not self._engine.has_place(client):  # before the prompts are read
            raise RequestError(503, _BUSY)
        if not (all(prompts) or (asked.session and self._engine.has_session(asked.session))):
            what = "The prompt must have a token, because there is no session to continue."
            raise RequestError(404 if asked.session else 400, what, "prompt")
        return await asyncio.to_thread(lambda: [self._token_ids(prompt) for prompt in prompts])

    def _token_ids(self, prompt: str | tuple[int, ...]) -> np.ndarray:
        """Returns the tokens of a prompt, none for an empty one."""
        try:
            if not prompt:
                ids = np.zeros(0)
            elif isinstance(prompt, str):
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

    async def _events(
        self,
        asked: CompletionRequest,
        completions: list[Completion],
        queue: asyncio.Queue[TextPiece],
    ) -> AsyncIterator[dict[str, Any]]:
        """Yields parts of the texts as they are written, in OpenAI's form, and the usage last."""
        unbegun, num_open = set(range(len(completions))), len(completions)
        while num_open:
            piece = await queue.get()
            if piece.error is not None:
                raise RequestError(500, f"The text cannot be written: {piece.error}")
            num_open -= piece.finish_reason is not None
            text = piece.text
            if asked.echo and piece.choice in unbegun:
                prompt = completions[piece.choice].prompt_ids
                text = self._engine.tokenizer.decode_text(prompt) + text
            unbegun.discard(piece.choice)
            choice = {
                "index": piece.choice,
                "text": text,
                "logprobs": None if asked.logprobs is None else _logprobs(piece.scores),
                "finish_reason": piece.finish_reason,
            }
            if asked.return_token_ids:
                choice["token_ids"] = piece.token_ids
            yield {"choices": [choice]}
        # Several texts of one prompt count it once.
        read = sum(len(row.prompt_ids) for row in completions[:: asked.n])
        written = sum(row.num_written for row in completions)
        usage = {"prompt_tokens": read, "completion_tokens": written}
        yield {"choices": [], "usage": {**usage, "total_tokens": read + written}}

    async def _collected(
        self, asked: CompletionRequest, answer: dict[str, Any], events: _Events
    ) -> web.Response:
        choices: dict[int, dict[str, Any]] = {}
        async for event in events:
            answer |= event
            for part in event["choices"]:
                choice = choices.setdefault(part["index"], part)
                if choice is not part:
                    choice["text"] += part["text"]
                    if asked.return_token_ids:
                        choice["token_ids"] += part["token_ids"]
                    choice["finish_reason"] = part["finish_reason"]
                    for name, values in (part["logprobs"] or {}).items():
                        choice["logprobs"][name] += values
        answer["choices"] = [choices[index] for index in sorted(choices)]
        if asked.session:
            tokens = self._engine.session_tokens(asked.session)
            answer["session"] = {"name": asked.session, "tokens": tokens}
        return web.json_response(answer)


async def _streamed(
    request: web.Request, asked: CompletionRequest, answer: dict[str, Any], events: _Events
) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
    )

    async def send(event: str) -> None:
        if not response.prepared:
            await response.prepare(request)
        await response.write(f"data: {event}\n\n".encode())

    try:
        async for event in events:
            if asked.include_usage or "usage" not in event:
                await send(json.dumps({**answer, **event}))
    except RequestError as error:
        if not response.prepared:
            raise
        await send(json.dumps(error.body()))
    await send("[DONE]")
    return response


async def _body_of(request: web.Request) -> bytes:
    try:
        return await asyncio.wait_for(request.read(), _BODY_SECONDS)
    except TimeoutError as error:
        raise RequestError(408, f"The body took more than {_BODY_SECONDS} s.") from error
    except web.RequestPayloadError as error:
        raise RequestError(400, "The body does not have its Content-Encoding.") from error


def _is_ours(record: logging.LogRecord) -> bool:
    """Returns False for a request that is not HTTP: aiohttp would log its traceback."""
    faults = (HttpProcessingError, web.RequestPayloadError)
    return not (record.exc_info and isinstance(record.exc_info[1], faults))


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        values = parse_json(body)
        if not isinstance(values, dict):
            raise ValueError(f"Received: {type(values).__name__}")
    except ValueError as error:
        raise RequestError(400, f"The body must be a JSON object. {error}") from error
    return values


def _logprobs(scores: Sequence[TokenScore]) -> dict[str, list[Any]]:
    """Returns the scores of tokens in OpenAI's form, a list for each of their parts."""
    columns = zip(*scores, strict=True) if scores else ((),) * len(_SCORE_PARTS)
    return {name: list(values) for name, values in zip(_SCORE_PARTS, columns, strict=True)}
