"""Text server over HTTP, in the form of OpenAI's completions, with its engine.

The engine is one thread that reads prompts and writes all texts in one batch. A text joins the
batch when its prompt is read, and leaves it when it ends. A long prompt is read segment by segment,
one segment between two tokens of the other texts. Clients share the batch equally: if a client has
two places more than a waiting client, one of its texts pauses.

Shape letters used in this module: R rows, T tokens of a piece, V vocabulary.
"""

import asyncio
import collections
import dataclasses
import hmac
import itertools
import json
import logging
import os
import secrets
import threading
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import tensorflow as tf
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from txl_tf.causal_lm.causal_lm import TextPieces, TransformerXLCausalLM, prompt_tokens
from txl_tf.config.base import DEFAULT_NEW_TOKENS, FrozenConfig, not_negative, positive
from txl_tf.config.generation import GenerationConfig, new_seed, sample_seeds
from txl_tf.data.tokenizers.tokenizer import checked_token_ids, excluded_tokens
from txl_tf.errors import UsageError, did_you_mean
from txl_tf.generation.decoding import NOTHING, DecodingState, TokenRules, write_tokens
from txl_tf.generation.session import CAPACITY, writing_engine
from txl_tf.inference.engine import InferenceEngine
from txl_tf.inference.segment_reader import SegmentReader, joined_rows
from txl_tf.samplers import SETTINGS, RandomSampler, RepetitionPenalty
from txl_tf.storage.untrusted_files import parse_json

_LOWEST_LOGPROB = -9999.0  # JSON has no infinity
_SESSION_SECONDS = 5.0  # that a request waits for the text before it
_SCORED_TOKENS = 64  # at once: a large vocabulary has a large array of scores
_CONTEXT_TOKENS = 1024  # of a prompt, for the text of the tokens after it
_SETTINGS = {**SETTINGS, "repetition_penalty": "float32", "allow_unknown": "bool"}
_PAGE = os.path.join(os.path.dirname(__file__), "page.html")
_BODY_SECONDS = 30.0
SHUTDOWN_SECONDS = 2.0
"""Time for requests and for the engine to end."""
_MAX_SESSION_LETTERS = 100
_MAX_TEXTS = 64  # prompts of a request times `n`
# Parameters of OpenAI's interface that are not supported, with the values that change nothing.
_NEUTRAL: dict[str, Any] = {"best_of": 1, "logit_bias": {}, "suffix": ""}
_NEUTRAL |= {"frequency_penalty": 0, "presence_penalty": 0}
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class RequestError(Exception):
    """Refused request, with its HTTP status and the wrong parameter."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param = status, param


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamOptions(FrozenConfig):
    """Options of a stream."""

    include_usage: bool = False
    """True to end the stream with the counts of tokens."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompletionRequest(GenerationConfig):
    """Body of `/v1/completions`: the settings of `GenerationConfig`, and the form of the answer."""

    prompt: str | tuple[str, ...] | tuple[int, ...] | tuple[tuple[int, ...], ...] = ""
    """Text or token ids, or several of them."""
    max_tokens: Annotated[int, not_negative()] = DEFAULT_NEW_TOKENS
    """Most tokens to write; 0 only reads the prompt."""
    n: Annotated[int, positive()] = 1
    """Texts for each prompt."""
    echo: bool = False
    """True to begin each text with its prompt."""
    logprobs: Annotated[int | None, not_negative(5)] = None
    """Alternatives that are returned for each token."""
    return_token_ids: bool = False
    """True to return `token_ids` in each choice."""
    stream: bool = False
    """True to send texts as they are written."""
    stream_options: StreamOptions = StreamOptions()
    """Options of the stream."""
    session: str = ""
    """Name of a text that is continued over many requests, with its memory."""
    model: str | None = None
    """Name of the model; the server refuses other names than its own."""


class TokenScore(NamedTuple):
    """A token, its place in the text, its log-probability and the highest ones of its position."""

    tokens: str
    text_offset: int
    token_logprobs: float | None = None
    top_logprobs: dict[str, float] | None = None


class TextPiece(NamedTuple):
    """A piece of a text as it is written; the last one has a reason or an error."""

    choice: int
    text: str = ""
    scores: Sequence[TokenScore] = ()
    token_ids: Sequence[int] = ()
    finish_reason: str | None = None
    error: str | None = None


@dataclasses.dataclass(eq=False, kw_only=True)
class Completion:
    """One text of a request, its progress and its memory, which a session keeps for the next text.

    The thread of the engine calls `deliver` with each `TextPiece`. `owner` is the client and its
    request. Memory ends before the `unread` tokens, which end with the newest token. `is_over` is
    true if the text ended or was cancelled. `position` counts the tokens that earlier requests of
    the session wrote, and `num_tokens` all its tokens, those of prompts too. Scores have a memory
    of their own, of the lengths of evaluations, which ends before the `unscored` tokens.
    """

    index: int = 0
    settings: CompletionRequest = CompletionRequest()
    seed: int = 0
    owner: tuple[str, str] = ("", "")
    deliver: Callable[[TextPiece], object] = print
    prompt_ids: np.ndarray
    memory: Any
    unread: np.ndarray
    score_memory: Any
    unscored: np.ndarray
    is_used: np.ndarray
    pieces: TextPieces
    is_over: bool = False
    position: int = 0
    num_tokens: int = 0
    num_written: int = 0
    num_echoed: int = 0
    last_use: float = 0.0
    scores: list[TokenScore] = dataclasses.field(default_factory=list)
    token_ids: list[int] = dataclasses.field(default_factory=list)

    @property
    def scores_prompt(self) -> bool:
        """True if the tokens of the prompt are scored."""
        return self.settings.echo and self.settings.logprobs is not None


class TextEngine:
    """Worker that reads and writes the texts of all requests.

    It writes `max_rows` texts side by side. `max_waiting` requests may wait, at most half of them
    from one client. A session ends after `session_seconds` without a request. With more than
    `max_sessions`, the one that rested longest ends.
    """

    def __init__(
        self,
        lm: TransformerXLCausalLM,
        *,
        max_rows: int = 8,
        max_waiting: int = 16,
        max_sessions: int = 64,
        session_seconds: float = 1800.0,
    ) -> None:
        tokenizer: Any = lm.tokenizer
        self.tokenizer = tokenizer
        self.vocabulary_size = lm.model.config.vocabulary_size
        self._num_prompt_tokens = self._num_written_tokens = 0
        self._max_rows, self._max_waiting = max_rows, max_waiting
        self._max_sessions, self._session_seconds = max_sessions, session_seconds
        self._engine = writing_engine(lm.model, None, max_rows)
        self._reader = SegmentReader(self._engine)
        scoring_model = lm.evaluator().model
        self._scorer = SegmentReader(InferenceEngine(scoring_model, num_rows=1))
        self._finish = tf.function(self._engine.finish, autograph=False)
        compiles = self._engine.plan.compile_step
        self._step = tf.function(self._next_tokens, autograph=False, jit_compile=compiles)
        self._log_probs_of = tf.function(scoring_model.log_probs_of, autograph=False)
        # A program for a single text and one for a full batch.
        self._sizes = sorted({1, max_rows})
        self._constants = {size: self._engine.step_constants(size) for size in self._sizes}
        self._empty_memory = self._engine.initial_memory(1)
        nothing = np.zeros((0,), np.int32)
        self._nothing = Completion(
            prompt_ids=nothing,
            memory=self._empty_memory,
            unread=nothing,
            score_memory=self._scorer.engine.initial_memory(1),
            unscored=nothing,
            is_used=np.zeros((self.vocabulary_size,), bool),
            pieces=TextPieces(tokenizer, nothing, ()),
        )
        self._changed = threading.Condition()
        self._waiting: list[Completion] = []
        self._sessions: dict[str, Completion] = {}
        self._busy: set[str] = set()
        self._reading: Completion | None = None
        self._rows: list[Completion] = []
        self._is_closed = False
        # Compiles the programs, so that the first request need not wait for them.
        next(self._reader.read_next([np.zeros((2,), np.int32)], self._empty_memory))
        for size in self._sizes:
            self._begin_batch([self._empty_memory] * size)
            self._write_tokens()
        self._num_recent = 0
        self.thread = threading.Thread(target=self._run, name="text engine", daemon=True)
        self.thread.start()

    def metrics(self) -> dict[str, int]:
        """Returns numbers of tokens, waiting texts, running texts and sessions."""
        return {
            "txl_prompt_tokens_total": self._num_prompt_tokens,
            "txl_completion_tokens_total": self._num_written_tokens,
            "txl_texts_waiting": len(self._waiting),
            "txl_texts_running": len(self._rows) + (self._reading is not None),
            "txl_texts_sessions": len(self._sessions),
        }

    def check_place(self, client: str) -> None:
        """Raises RequestError if another request of a client may not wait."""
        clients = [each for each, _ in {row.owner for row in self._waiting}]
        share = max(1, self._max_waiting // 2)
        if len(clients) >= self._max_waiting or clients.count(client) >= share:
            raise RequestError(503, "The server is busy; ask again later.")

    def wait_for(self, session: str, seconds: float = _SESSION_SECONDS) -> None:
        """Waits until no other text continues a session; RequestError if that takes too long."""
        with self._changed:
            if not self._changed.wait_for(lambda: session not in self._busy, seconds):
                what = "Another request continues this session; ask again later."
                raise RequestError(503, what, "session")

    def submit(
        self,
        settings: CompletionRequest,
        prompts: Sequence[np.ndarray],
        owner: tuple[str, str],
        deliver: Callable[[TextPiece], object],
    ) -> list[Completion]:
        """Queues the texts of a request; RequestError if queue, session or a text forbids it."""
        name, seed = settings.session, new_seed() if settings.seed is None else settings.seed
        texts = itertools.product(prompts, sample_seeds(seed, settings.n))
        with self._changed:
            self.check_place(owner[0])
            self.wait_for(name, 0.0)
            self._end_old_sessions()
            before = self._sessions.get(name, self._nothing)
            if not len(before.unread) and not all(map(len, prompts)):
                what = "The prompt must have a token, because there is no session to continue."
                raise RequestError(404 if name else 400, what, "prompt")
            begun = []
            for index, (prompt_ids, seed) in enumerate(texts):
                known = np.append(before.pieces.newest_ids, prompt_ids)[-_CONTEXT_TOKENS:]
                row = dataclasses.replace(
                    before,
                    index=index,
                    settings=settings,
                    seed=seed,
                    owner=owner,
                    deliver=deliver,
                    prompt_ids=prompt_ids,
                    unread=np.append(before.unread, prompt_ids),
                    unscored=np.append(before.unscored, prompt_ids),
                    pieces=TextPieces(self.tokenizer, known, settings.stop),
                    is_over=False,
                    position=before.position + before.num_written,
                    num_written=0,
                    num_echoed=0,
                    scores=[],
                    token_ids=[],
                )
                if row.scores_prompt and not len(before.unread):
                    (token,) = self.tokenizer.decode_each(prompt_ids[:1])
                    row.scores.append(TokenScore(token, 0))
                    row.num_echoed = len(token)
                begun.append(row)
            self._busy |= {name} - {""}
            self._waiting.extend(begun)
            self._changed.notify_all()
        return begun

    def close(self, timeout_seconds: float) -> None:
        """Stops the thread after the current token."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self.thread.join(timeout_seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._rows or self._reading or self._is_closed):
                    self._changed.wait()
                if self._is_closed:
                    return
            try:
                self._turn()
            except Exception as error:  # answered, and the next request may work
                traceback.print_exc()
                self._fail(f"{type(error).__name__}: {error}")

    def _turn(self) -> None:
        """Reads a piece of waiting prompts, and writes a token of every text."""
        rows = [row for row in self._rows if not row.is_over]
        self._pause_one(rows)
        joining: list[Completion] = []
        while len(rows) + len(joining) < self._max_rows:
            self._reading = row = self._reading or self._next_waiting([*rows, *joining])
            if row is None:
                break
            if row.is_over:
                self._release(row)
            elif row.num_written:  # has paused
                joining.append(row)
            elif not self._read_piece(row):
                break  # the rest is read after a token of the other texts
            else:
                self._remember_prompt(row)
                if row.settings.max_tokens:
                    joining.append(row)
                else:
                    self._deliver(row, "", "length")
                    self._release(row)
            self._reading = None
        if joining or len(rows) < len(self._rows) or self._num_recent == CAPACITY:
            self._regroup(rows, joining)
        if self._rows:
            self._write_tokens()

    def _pause_one(self, rows: list[Completion]) -> None:
        """Takes a text out of a full batch whose client has two places more than a waiting one."""
        if len(rows) < self._max_rows or self._reading is not None:
            return
        places = collections.Counter(row.owner[0] for row in rows)
        ((client, most),) = places.most_common(1)
        with self._changed:
            least = min((places[row.owner[0]] for row in self._waiting), default=most)
            if most >= least + 2:
                paused = next(row for row in reversed(rows) if row.owner[0] == client)
                rows.remove(paused)
                self._waiting.append(paused)

    def _next_waiting(self, running: Sequence[Completion]) -> Completion | None:
        """Takes the text whose client and request have the fewest places."""
        places = collections.Counter(key for row in running for key in (row.owner, row.owner[0]))
        with self._changed:
            row = min(
                self._waiting,
                key=lambda row: (places[row.owner[0]], places[row.owner], not row.num_written),
                default=None,
            )
            if row is not None:
                self._waiting.remove(row)
        return row

    def _read_piece(self, row: Completion) -> bool:
        """Reads a segment of a prompt; returns True if only its last token is left."""
        if row.scores_prompt and len(row.unscored) > 1:
            self._score_piece(row)
            return False
        if len(row.unread) > 1:
            batch, _, row.memory = next(self._reader.read_next([row.unread[:-1]], row.memory))
            row.unread = row.unread[batch.lengths[0] :]
        return len(row.unread) == 1

    def _score_piece(self, row: Completion) -> None:
        """Scores a segment of a prompt, after the text of its session."""
        batch, hidden, row.score_memory = next(
            self._scorer.read_next([row.unscored[:-1]], row.score_memory)
        )
        count, begin = batch.lengths[0], max(0, len(row.unscored) - 1 - len(row.prompt_ids))
        targets, row.unscored = row.unscored[1 : count + 1], row.unscored[count:]
        for start in range(begin, count, _SCORED_TOKENS):
            states = hidden[:, start : min(count, start + _SCORED_TOKENS)]
            padding = [[0, 0], [0, _SCORED_TOKENS - states.shape[1]], [0, 0]]
            log_probs = self._log_probs_of(tf.pad(states, padding))[0]
            pairs = zip(targets[start : start + _SCORED_TOKENS], log_probs, strict=False)
            for token_id, scores in pairs:
                row.scores.append(self._score(row, int(token_id), scores, row.num_echoed))
                row.num_echoed += len(row.scores[-1].tokens)

    def _score(
        self, row: Completion, token_id: int, log_probs: tf.Tensor, text_offset: int
    ) -> TokenScore:
        """Returns the score of a token among the log-probabilities `(V,)` of all."""
        count = min(row.settings.logprobs or 0, self.vocabulary_size)
        values, ids = tf.math.top_k(log_probs, count)
        token, *others = self.tokenizer.decode_each(np.append(token_id, ids.numpy()))
        logprob, *best = np.maximum([log_probs[token_id], *values], _LOWEST_LOGPROB).tolist()
        top = dict(zip(reversed(others), reversed(best), strict=True)) if count else None
        return TokenScore(token, text_offset, logprob, top)

    def _remember_prompt(self, row: Completion) -> None:
        row.is_used = row.is_used.copy()
        row.is_used[row.prompt_ids] = True
        row.num_tokens += len(row.prompt_ids)
        self._num_prompt_tokens += len(row.prompt_ids)
        if row.settings.session:
            self._sessions[row.settings.session] = row
        if row.settings.echo:
            self._deliver(row, self.tokenizer.decode_text(row.prompt_ids))

    def _regroup(self, staying: list[Completion], joining: list[Completion]) -> None:
        """Brings memories up to date, and makes the batch of other texts."""
        memories = []
        if self._rows:
            count = tf.constant(self._num_recent, tf.int32)
            settled = self._finish(self._memory, self._state.recent[0], count)
        for place, row in enumerate(self._rows):
            memory = tf.nest.map_structure(lambda each, k=place: each[k : k + 1], settled)
            if row in staying:
                memories.append(memory)
                continue
            row.memory = memory
            if row not in self._waiting:
                self._release(row)
        memories += [row.memory for row in joining]
        self._rows = [*staying, *joining]
        if memories:
            size = next(size for size in self._sizes if size >= len(memories))
            self._begin_batch(memories + [self._empty_memory] * (size - len(memories)))

    def _begin_batch(self, memories: list[Any]) -> None:
        rows, size = self._rows, len(memories)

        def tensor(values: list[Any], dtype: str = "int32") -> tf.Tensor:
            return tf.constant(np.array(values + [1] * (size - len(rows)), dtype))

        self._memory, self._num_recent = joined_rows(memories), 0
        is_used = np.zeros((size, self.vocabulary_size), bool)
        for place, row in enumerate(rows):
            is_used[place] = row.is_used
        self._settings = {
            name: tensor([getattr(row.settings, name) for row in rows], dtype)
            for name, dtype in _SETTINGS.items()
        }
        self._settings["seed"] = tensor([row.seed for row in rows])
        recent = self._engine.begin(self._memory, capacity=CAPACITY)
        self._state = DecodingState(
            pending=tensor([row.unread[0] for row in rows]),
            is_finished=tensor([False for _ in rows], "bool"),
            is_used=tf.constant(is_used),
            lengths=tf.zeros([size], tf.int32),
            position=tensor([row.position + row.num_written for row in rows]),
            recent=(recent, tf.zeros([size, self.vocabulary_size])),
        )

    def _write_tokens(self) -> None:
        constants = self._constants[self._state.pending.shape[0]]
        self._state = self._step(self._memory, constants, self._state, self._settings)
        self._num_recent += 1
        log_probs = self._state.recent[1]
        token_ids = self._state.pending.numpy().tolist()
        for place, (row, token_id) in enumerate(zip(self._rows, token_ids, strict=False)):
            scores = None if row.settings.logprobs is None else log_probs[place]
            self._take_token(row, token_id, scores)

    def _next_tokens(
        self, memory: Any, constants: Any, state: DecodingState, settings: dict[str, tf.Tensor]
    ) -> DecodingState:
        def step(token_ids: tf.Tensor, is_active: tf.Tensor, recent: Any) -> tuple[Any, Any]:
            log_probs, recent = self._engine.step(
                token_ids, is_active, memory, recent[0], constants
            )
            return log_probs, (recent, log_probs)

        unknown = tf.constant(excluded_tokens(self.tokenizer, allow_unknown=False), tf.int32)
        rules = TokenRules(
            RandomSampler(*(settings[name] for name in SETTINGS)),
            RepetitionPenalty(settings["repetition_penalty"]),
            excluded_token_ids=tf.where(settings["allow_unknown"][:, None], NOTHING, unknown),
        )
        # XLA would compile a step outside a loop again for each number of recent tokens.
        return write_tokens(step, rules, settings["seed"], state, max_tokens=1, capacity=1)[1]

    def _take_token(self, row: Completion, token_id: int, log_probs: tf.Tensor | None) -> None:
        row.unread = np.array([token_id], np.int32)
        row.unscored = np.append(row.unscored, row.unread)
        row.is_used[token_id] = True
        row.num_tokens += 1
        row.num_written += 1
        self._num_written_tokens += 1
        if token_id == self.tokenizer.end_token_id:
            self._deliver(row, row.pieces.rest(), "stop")
            return
        row.token_ids.append(token_id)
        offset = row.num_echoed + row.pieces.num_characters
        piece = row.pieces.add(token_id)
        if log_probs is not None:
            row.scores.append(self._score(row, token_id, log_probs, offset))
        if row.pieces.is_over:
            end = row.num_echoed + row.pieces.num_characters
            row.scores = [score for score in row.scores if score.text_offset < end]
            self._deliver(row, piece, "stop")
        elif row.num_written == row.settings.max_tokens:
            self._deliver(row, piece + row.pieces.rest(), "length")
        elif piece:
            self._deliver(row, piece)

    def _deliver(self, row: Completion, text: str, finish_reason: str | None = None) -> None:
        row.is_over = row.is_over or finish_reason is not None
        scores, ids, row.scores, row.token_ids = row.scores, row.token_ids, [], []
        row.deliver(TextPiece(row.index, text, scores, ids, finish_reason))

    def _release(self, row: Completion) -> None:
        """Lets the session of a text, if it has one, be continued."""
        name = row.settings.session
        with self._changed:
            self._busy.discard(name)
            self._changed.notify_all()
            if name in self._sessions:  # else cancelled before it was read
                self._sessions[name] = newest = self._sessions.pop(name)  # the last
                newest.last_use = time.monotonic()

    def _end_old_sessions(self) -> None:
        earliest = time.monotonic() - self._session_seconds
        for name, row in list(self._sessions.items()):
            is_surplus = len(self._sessions) > self._max_sessions
            if name not in self._busy and (is_surplus or row.last_use < earliest):
                del self._sessions[name]

    def _fail(self, message: str) -> None:
        """Answers the texts at work with an error; their sessions end."""
        with self._changed:
            paused = [row for row in self._waiting if row.num_written]
            rows = [*self._rows, *paused, *([self._reading] if self._reading else [])]
            self._waiting = [row for row in self._waiting if not row.num_written]
            self._rows, self._reading = [], None
            for row in rows:
                self._sessions.pop(row.settings.session, None)
                self._busy.discard(row.settings.session)
        for row in rows:
            row.deliver(TextPiece(row.index, error=message))


def parse_request(body: bytes) -> CompletionRequest:
    """Reads the body of a request, without nulls; RequestError names the first wrong parameter."""
    values = {
        name: value
        for name, value in _json_object(body).items()
        if value is not None and name != "user" and _NEUTRAL.get(name) != value
    }
    known = list(CompletionRequest.__dataclass_fields__)
    for name in values:
        if name not in known:
            suggestion = did_you_mean(name, known)
            what = f"The server does not support the parameter `{name[:60]}`.{suggestion}"
            raise RequestError(400, what, name[:60])
    try:
        return CompletionRequest.from_dict(values)
    except ValueError as error:
        param = str(error).partition("`")[2].partition("`")[0]
        raise RequestError(400, str(error), param or None) from error


class TextServer:
    """HTTP application of a `TextEngine`; requests need the API key, except `/` and `/health`."""

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
        self._requests: collections.Counter[int] = collections.Counter()
        self._seconds = 0.0

    def application(self) -> web.Application:
        """Returns the application, which closes the engine when it ends."""
        logging.getLogger("aiohttp.server").addFilter(_is_not_malformed)
        application = web.Application(
            client_max_size=self._max_body_bytes, middlewares=[self._answer_errors]
        )
        application.add_routes(
            [
                web.get("/", self._page),
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.get("/v1/models", self._models),
                web.post("/v1/completions", self._completions),
                web.get("/tokenizer_info", self._tokenizer_info),
                web.post("/tokenize", self._tokenize),
                web.post("/detokenize", self._detokenize),
            ]
        )

        async def close(_: web.Application) -> None:
            # The engine delivers to the event loop, so it stops first.
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
        except web.HTTPException as error:
            response = _refusal(RequestError(error.status, error.text or error.reason))
        except RequestError as error:
            response = _refusal(error)
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
        if not self._engine.thread.is_alive():
            raise RequestError(500, "The engine has stopped; restart the server.")
        return web.json_response({"status": "ok"})

    async def _metrics(self, request: web.Request) -> web.Response:
        values = {**self._engine.metrics(), "txl_request_seconds_total": self._seconds}
        lines = [f"{name} {value}" for name, value in values.items()]
        for status, count in sorted(self._requests.items()):
            lines.append(f'txl_requests_total{{status="{status}"}} {count}')
        return web.Response(text="\n".join([*lines, ""]))

    async def _models(self, request: web.Request) -> web.Response:
        description: dict[str, Any] = {"id": self._model_name, "object": "model"}
        description |= {"created": self._created, "owned_by": "txl-tf"}
        return web.json_response({"object": "list", "data": [description]})

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
        if asked.model is not None and asked.model != self._model_name:
            what = f"The server has no model `{asked.model[:60]}`, only `{self._model_name}`."
            raise RequestError(404, what, "model")
        owner = (str(request.remote), f"cmpl-{secrets.token_hex(12)}")
        prompts = await self._prompts(asked, owner[0])
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[TextPiece] = asyncio.Queue()

        def deliver(piece: TextPiece) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, piece)

        completions = self._engine.submit(asked, prompts, owner, deliver)
        answer: dict[str, Any] = {"id": owner[1], "object": "text_completion"}
        answer |= {"created": int(time.time()), "model": self._model_name}
        pieces = _pieces(queue, len(completions))
        try:
            if asked.stream:
                return await _streamed(request, answer, completions, pieces)
            texts: list[list[TextPiece]] = [[] for _ in completions]
            async for piece in pieces:
                texts[piece.choice].append(piece)
        finally:
            for completion in completions:
                completion.is_over = True
        choices = [_choice(asked, each) for each in texts]
        answer |= {"choices": choices, "usage": _usage(completions)}
        if asked.session:
            answer["session"] = {"name": asked.session, "tokens": completions[0].num_tokens}
        return web.json_response(answer)

    async def _prompts(self, asked: CompletionRequest, client: str) -> list[np.ndarray]:
        """Checks the limits of a request; returns the tokens of each prompt, perhaps none."""
        prompts: Any = asked.prompt
        if isinstance(prompts, str) or isinstance((*prompts, "")[0], int):
            prompts = [prompts]
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
        self._engine.check_place(client)  # before the prompts are read

        def read() -> list[np.ndarray]:
            self._engine.wait_for(asked.session)
            return [self._token_ids(prompt) for prompt in prompts]

        return await asyncio.to_thread(read)

    def _token_ids(self, prompt: str | tuple[int, ...]) -> np.ndarray:
        """Returns the tokens of a prompt, none for an empty one."""
        try:
            if not prompt:
                ids = np.zeros(0)
            elif isinstance(prompt, str):
                ids = prompt_tokens(self._engine.tokenizer, prompt)
            else:
                ids = checked_token_ids(prompt, self._engine.vocabulary_size)
        except (UsageError, ValueError, OverflowError) as error:
            what = error.what if isinstance(error, UsageError) else str(error)
            raise RequestError(400, what, "prompt") from error
        if len(ids) > self._max_prompt_tokens:
            most = self._max_prompt_tokens
            what = f"A prompt must have at most {most} tokens. Received: {len(ids)}"
            raise RequestError(400, what, "prompt")
        return ids.astype(np.int32)


async def _pieces(queue: asyncio.Queue[TextPiece], num_texts: int) -> AsyncIterator[TextPiece]:
    """Yields the pieces of all texts as they are written."""
    while num_texts:
        piece = await queue.get()
        if piece.error is not None:
            raise RequestError(500, f"The text cannot be written: {piece.error}")
        num_texts -= piece.finish_reason is not None
        yield piece


def _choice(asked: CompletionRequest, pieces: Sequence[TextPiece]) -> dict[str, Any]:
    """Returns successive pieces of a text in OpenAI's form."""
    scores = [score for piece in pieces for score in piece.scores]
    # The fields of a score have the names of OpenAI's lists.
    names = TokenScore._fields
    logprobs = {name: [getattr(each, name) for each in scores] for name in names}
    choice = {
        "index": pieces[0].choice,
        "text": "".join(piece.text for piece in pieces),
        "logprobs": None if asked.logprobs is None else logprobs,
        "finish_reason": pieces[-1].finish_reason,
    }
    if asked.return_token_ids:
        choice["token_ids"] = [token_id for piece in pieces for token_id in piece.token_ids]
    return choice


def _usage(completions: Sequence[Completion]) -> dict[str, int]:
    # Several texts of one prompt count it once.
    read = sum(len(row.prompt_ids) for row in completions[:: completions[0].settings.n])
    written = sum(row.num_written for row in completions)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


async def _streamed(
    request: web.Request,
    answer: dict[str, Any],
    completions: Sequence[Completion],
    pieces: AsyncIterator[TextPiece],
) -> web.StreamResponse:
    """Sends the pieces as events; an error after the first event becomes an event too."""
    asked = completions[0].settings
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
    )

    async def send(event: str) -> None:
        if not response.prepared:
            await response.prepare(request)
        await response.write(f"data: {event}\n\n".encode())

    try:
        async for piece in pieces:
            await send(json.dumps({**answer, "choices": [_choice(asked, [piece])]}))
        if asked.stream_options.include_usage:
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


def _refusal(error: RequestError) -> web.Response:
    headers = {"Retry-After": "1"} if error.status == 503 else {}
    return web.json_response(_body(error), status=error.status, headers=headers)


async def _body_of(request: web.Request) -> bytes:
    try:
        return await asyncio.wait_for(request.read(), _BODY_SECONDS)
    except TimeoutError as error:
        raise RequestError(408, f"The body did not arrive in {_BODY_SECONDS:g} seconds.") from error
    except web.RequestPayloadError as error:
        raise RequestError(400, "The Content-Encoding does not fit the body.") from error


def _is_not_malformed(record: logging.LogRecord) -> bool:
    """Returns False for a malformed request, whose traceback aiohttp would log."""
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
