"""Text engine of the server: one thread that reads prompts and writes all texts in one batch.

A text joins the batch when its prompt is read, and leaves it when it ends. A long prompt is
read segment by segment, one segment between two tokens of the other texts. Clients share the
batch equally: a text of a client with two places more pauses for the text of another client.

Shape letters used in this module: R rows, T tokens of a piece, V vocabulary.
"""

import collections
import dataclasses
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.causal_lm.causal_lm import TransformerXLCausalLM
from txl_tf.causal_lm.text import TextPieces, pieces_of
from txl_tf.config.base import DEFAULT_NEW_TOKENS, not_negative, positive
from txl_tf.config.generation import GenerationConfig
from txl_tf.data.tokenizers.tokenizer import excluded_tokens
from txl_tf.generation.decoding import (
    NOTHING,
    DecodingState,
    PromptReader,
    TokenRules,
    write_tokens,
)
from txl_tf.generation.session import CAPACITY, writing_engine
from txl_tf.samplers import RandomSampler, RepetitionPenalty

_LOWEST_LOGPROB = -9999.0  # JSON has no infinity
_SCORED_TOKENS = 64  # at once: a large vocabulary has a large array of scores
_CONTEXT_TOKENS = 1024  # of a prompt, for the text of the tokens after it
_SAMPLER_SETTINGS = {
    "temperature": np.float32,
    "top_k": np.int32,
    "top_p": np.float32,
    "min_p": np.float32,
}
_SETTINGS = {**_SAMPLER_SETTINGS, "repetition_penalty": np.float32, "allow_unknown": np.bool_}


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
    logprobs: Annotated[int | None, not_negative(5)] = None
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

    def prompts(self) -> list[Any]:
        """Returns the prompts, each a text or a tuple of token ids."""
        is_single = isinstance(self.prompt, str) or isinstance((*self.prompt, "")[0], int)
        return [self.prompt] if is_single else list(self.prompt)


class TokenScore(NamedTuple):
    """A token's text and place, its log-probability and the highest ones of its position."""

    token: str
    text_offset: int
    logprob: float | None = None
    top: dict[str, float] | None = None


class TextPiece(NamedTuple):
    """A piece of a text as it is written; the last one has a reason or an error."""

    choice: int
    text: str = ""
    scores: Sequence[TokenScore] = ()
    finish_reason: str | None = None
    error: str | None = None


@dataclasses.dataclass(eq=False)
class TextState:
    """Memory of one text, kept from request to request of a session.

    Memory does not have the `pending` token yet. The text of the next token follows from
    `newest_ids`, its draw from `num_written`.
    """

    memory: Any
    is_used: np.ndarray
    pending: np.ndarray
    newest_ids: np.ndarray
    num_tokens: int = 0
    num_written: int = 0
    last_use: float = 0.0
    is_busy: bool = False


@dataclasses.dataclass(eq=False, kw_only=True)
class Completion:
    """One text of a request, and its progress.

    `prompt_ids` may be empty where a session is continued. The thread of the engine calls
    `deliver` with each `TextPiece`. `owner` is the client and its request.
    """

    index: int
    prompt_ids: np.ndarray
    settings: CompletionRequest
    seed: int
    deliver: Callable[[TextPiece], object]
    owner: tuple[str, str] = ("", "")
    is_cancelled: bool = False
    is_finished: bool = False
    num_written: int = 0
    num_echoed: int = 0
    state: TextState = dataclasses.field(init=False)
    memory: Any = dataclasses.field(init=False)
    unread: np.ndarray = dataclasses.field(init=False)
    pieces: TextPieces = dataclasses.field(init=False)
    scores: list[TokenScore] = dataclasses.field(init=False, default_factory=list)

    @property
    def scores_prompt(self) -> bool:
        """True if the tokens of the prompt have scores too."""
        return self.settings.echo and self.settings.logprobs is not None


class TextEngine:
    """Worker that reads and writes the texts of all requests.

    `max_rows` texts are written side by side, and `max_waiting` requests wait, at most half of
    them from one client. Sessions end when they rest for `session_seconds`, or when there are
    more than `max_sessions`.
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
        self.tokenizer: Any = lm.tokenizer
        self.vocabulary_size = lm.model.config.vocabulary_size
        self.num_prompt_tokens = self.num_written_tokens = 0
        self._max_rows, self._max_waiting = max_rows, max_waiting
        self._max_sessions, self._session_seconds = max_sessions, session_seconds
        self._engine = writing_engine(lm.model, None, max_rows, None)
        self._reader = PromptReader(self._engine)
        self._finish = tf.function(self._engine.finish, autograph=False)
        self._step = tf.function(
            self._next_tokens, autograph=False, jit_compile=self._engine.plan.compile_step
        )
        self._log_probs_of = tf.function(lm.model.log_probs_of, autograph=False)
        # A program for a single text and one for a full batch.
        self._sizes = sorted({1, max_rows})
        self._constants = {size: self._engine.step_constants(size) for size in self._sizes}
        self._empty_memory = self._engine.initial_memory(1)
        self._changed = threading.Condition()
        self._waiting: list[Completion] = []
        self._paused: list[Completion] = []
        self._sessions: dict[str, TextState] = {}
        self._reading: Completion | None = None
        self._rows: list[Completion] = []
        self._memory: Any = None
        self._recent: Any = None
        self._num_recent = 0
        self._is_closed = False
        self._warm_up()
        self._thread = threading.Thread(target=self._run, name="text engine", daemon=True)
        self._thread.start()

    @property
    def gauges(self) -> dict[str, int]:
        """Returns the numbers of texts that wait and are written, and of sessions."""
        waiting = len(self._waiting) + len(self._paused)
        running = len(self._rows) + (self._reading is not None)
        return {"waiting": waiting, "running": running, "sessions": len(self._sessions)}

    @property
    def is_alive(self) -> bool:
        """True while requests are answered."""
        return self._thread.is_alive()

    def has_session(self, name: str) -> bool:
        """Returns True if a session can be continued."""
        with self._changed:
            self._end_old_sessions()
            return name in self._sessions

    def session_tokens(self, name: str) -> int:
        """Returns how many tokens a session has read and written."""
        state = self._sessions.get(name)
        return 0 if state is None else state.num_tokens

    def has_place(self, client: str) -> bool:
        """Returns True if another request of a client may wait."""
        clients = [each for each, _ in {row.owner for row in self._waiting}]
        share = max(1, self._max_waiting // 2)
        return len(clients) < self._max_waiting and clients.count(client) < share

    def submit(self, completions: Sequence[Completion]) -> bool:
        """Queues the texts of a request; returns False if it finds no place."""
        with self._changed:
            if not self.has_place(completions[0].owner[0]):
                return False
            self._waiting.extend(completions)
            self._changed.notify()
            return True

    def close(self, timeout_seconds: float) -> None:
        """Stops the thread after the token that is being written."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._rows or self._reading or self._is_closed):
                    self._changed.wait()  # a text pauses only beside others
                if self._is_closed:
                    return
            try:
                self._turn()
            except Exception as error:  # answered, and the next request may work
                traceback.print_exc()
                self._fail(f"{type(error).__name__}: {error}")

    def _turn(self) -> None:
        """Reads a piece of waiting prompts, and writes a token of every text."""
        rows = [row for row in self._rows if not (row.is_cancelled or row.is_finished)]
        self._pause_one(rows)
        joining: list[Completion] = []
        while len(rows) + len(joining) < self._max_rows:
            self._reading = row = self._reading or self._next_waiting([*rows, *joining])
            if row is None:
                break
            if row.is_cancelled:
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
            least = min((places[row.owner[0]] for row in self._free_texts()), default=most)
        if most >= least + 2:
            paused = next(row for row in reversed(rows) if row.owner[0] == client)
            rows.remove(paused)
            self._paused.append(paused)

    def _free_texts(self) -> list[Completion]:
        """Returns the waiting texts whose session has no other text at work."""
        states = [(row, self._sessions.get(row.settings.session)) for row in self._waiting]
        return [row for row, state in states if state is None or not state.is_busy]

    def _next_waiting(self, running: Sequence[Completion]) -> Completion | None:
        """Takes the text whose client and request have the fewest places.

        Prepares the reading of a text that has not paused.
        """
        places = collections.Counter(key for row in running for key in (row.owner, row.owner[0]))
        with self._changed:
            self._end_old_sessions()
            row = min(
                [*self._paused, *self._free_texts()],
                key=lambda row: (places[row.owner[0]], places[row.owner]),
                default=None,
            )
            if row is None or row in self._paused:
                if row is not None:
                    self._paused.remove(row)
                return row
            self._waiting.remove(row)
            state = self._sessions.get(row.settings.session)
            if state is None:
                nothing = np.zeros((0,), np.int32)
                is_used = np.zeros((self.vocabulary_size,), bool)
                state = TextState(self._empty_memory, is_used, nothing, nothing)
                if row.settings.session:
                    self._sessions[row.settings.session] = state
            state.is_busy = True
        row.state, row.memory = state, state.memory
        row.unread = np.append(state.pending, row.prompt_ids).astype(np.int32)
        if row.scores_prompt and not len(state.pending):
            (token,) = pieces_of(self.tokenizer, row.prompt_ids[:1])
            row.scores.append(TokenScore(token, 0))
            row.num_echoed = len(token)
        return row

    def _read_piece(self, row: Completion) -> bool:
        """Reads a segment of a prompt; returns True if only its last token is left."""
        if len(row.unread) > 1:
            read, following = row.unread[:-1], row.unread[1:]
            hidden, row.memory, length = self._reader.read_piece([read], row.memory)
            if row.scores_prompt:
                for start in range(0, min(length, len(read)), _SCORED_TOKENS):
                    ids = following[start : min(length, start + _SCORED_TOKENS)]
                    self._score_prompt(row, hidden[:, start : start + len(ids)], ids)
            row.unread = row.unread[min(length, len(read)) :]
        return len(row.unread) == 1

    def _score_prompt(self, row: Completion, hidden: tf.Tensor, token_ids: np.ndarray) -> None:
        padded = tf.pad(hidden, [[0, 0], [0, _SCORED_TOKENS - len(token_ids)], [0, 0]])
        log_probs = self._log_probs_of(padded)[0, : len(token_ids)]
        for token_id, scores in zip(token_ids, log_probs, strict=True):
            score = self._score(row, int(token_id), scores, row.num_echoed)
            row.scores.append(score)
            row.num_echoed += len(score.token)

    def _score(
        self, row: Completion, token_id: int, log_probs: tf.Tensor, text_offset: int
    ) -> TokenScore:
        """Returns the score of a token among the log-probabilities `(V,)` of all."""
        count = min(row.settings.logprobs or 0, self.vocabulary_size)
        values, ids = tf.math.top_k(log_probs, count)
        token, *others = pieces_of(self.tokenizer, np.append(token_id, ids.numpy()))
        logprob, *best = np.maximum([log_probs[token_id], *values], _LOWEST_LOGPROB).tolist()
        top = dict(zip(reversed(others), reversed(best), strict=True)) if count else None
        return TokenScore(token, text_offset, logprob, top)

    def _remember_prompt(self, row: Completion) -> None:
        state, ids = row.state, row.prompt_ids
        state.memory, state.pending = row.memory, row.unread
        state.is_used[ids] = True
        known = np.append(state.newest_ids, ids).astype(np.int32)[-_CONTEXT_TOKENS:]
        row.pieces = TextPieces(self.tokenizer, known, row.settings.stop)
        state.newest_ids = row.pieces.newest_ids
        state.num_tokens += len(ids)
        self.num_prompt_tokens += len(ids)

    def _regroup(self, staying: list[Completion], joining: list[Completion]) -> None:
        """Brings memories up to date, and makes the batch of other texts."""
        settled = self._memory
        if self._num_recent:
            count = tf.constant(self._num_recent, tf.int32)
            settled = self._finish(self._memory, self._recent, count)
        places = []
        for place, row in enumerate(self._rows):
            if row in staying:
                places.append(place)
                continue
            row.state.memory = row.memory = _row_of(settled, place)
            if row not in self._paused:
                self._release(row)
        self._rows, self._num_recent = [*staying, *joining], 0
        if not self._rows:
            self._memory = self._recent = None
            return
        size = next(size for size in self._sizes if size >= len(self._rows))
        parts = [_row_of(settled, place) for place in places]
        parts += [row.memory for row in joining]
        parts += [self._empty_memory] * (size - len(parts))
        self._begin_batch(tf.nest.map_structure(lambda *each: tf.concat(each, axis=0), *parts))

    def _begin_batch(self, memory: Any) -> None:
        self._memory, rows = memory, self._rows
        self._recent = self._engine.begin(memory, capacity=CAPACITY)
        size = tf.nest.flatten(memory)[0].shape[0]
        self._settings = {}
        for name, dtype in _SETTINGS.items():
            values = np.ones((size,), dtype)
            values[: len(rows)] = [getattr(row.settings, name) for row in rows]
            self._settings[name] = tf.constant(values)
        self._is_used = np.zeros((size, self.vocabulary_size), bool)
        for place, row in enumerate(rows):
            self._is_used[place] = row.state.is_used
        self._has_penalty = any(row.settings.repetition_penalty != 1 for row in rows)
        self._unused = tf.zeros(self._is_used.shape, tf.bool)

    def _write_tokens(self) -> None:
        rows, size = self._rows, len(self._is_used)
        numbers = np.zeros((3, size), np.int32)
        for place, row in enumerate(rows):
            numbers[:, place] = [row.state.pending[0], row.seed, row.state.num_written]
        drawn, log_probs, self._recent = self._step(
            self._memory,
            self._recent,
            self._constants[size],
            tf.constant(np.arange(size) < len(rows)),
            tf.constant(self._is_used) if self._has_penalty else self._unused,
            self._settings,
            *(tf.constant(each) for each in numbers),
        )
        self._num_recent += 1
        for place, (row, token_id) in enumerate(zip(rows, drawn.numpy().tolist(), strict=False)):
            self._is_used[place, token_id] = row.state.is_used[token_id] = True
            scores = None if row.settings.logprobs is None else log_probs[place]
            self._take_token(row, token_id, scores)

    def _take_token(self, row: Completion, token_id: int, log_probs: tf.Tensor | None) -> None:
        state = row.state
        state.pending = np.array([token_id], np.int32)
        state.num_tokens += 1
        state.num_written += 1
        row.num_written += 1
        self.num_written_tokens += 1
        if token_id == self.tokenizer.end_token_id:
            self._deliver(row, row.pieces.rest(), "stop")
            return
        offset = row.num_echoed + row.pieces.num_characters
        piece = row.pieces.add(token_id)
        state.newest_ids = row.pieces.newest_ids
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
        row.is_finished = finish_reason is not None
        scores, row.scores = row.scores, []
        row.deliver(TextPiece(row.index, text, scores, finish_reason))

    def _next_tokens(
        self,
        memory: Any,
        recent: Any,
        constants: Any,
        is_active: tf.Tensor,
        is_used: tf.Tensor,
        settings: dict[str, tf.Tensor],
        pending: tf.Tensor,
        seeds: tf.Tensor,
        positions: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, Any]:
        def step(token_ids: tf.Tensor, is_active: tf.Tensor, recent: Any) -> tuple[Any, Any]:
            log_probs, recent = self._engine.step(
                token_ids, is_active, memory, recent[0], constants
            )
            return log_probs, (recent, log_probs)

        unknown = tf.constant(excluded_tokens(self.tokenizer, allow_unknown=False), tf.int32)
        rules = TokenRules(
            RandomSampler(*(settings[name] for name in _SAMPLER_SETTINGS)),
            RepetitionPenalty(settings["repetition_penalty"]),
            excluded_token_ids=tf.where(settings["allow_unknown"][:, None], NOTHING, unknown),
        )
        log_probs = tf.zeros([pending.shape[0], self.vocabulary_size])
        state = DecodingState(
            pending=pending,
            is_finished=tf.logical_not(is_active),
            is_used=is_used,
            lengths=tf.zeros_like(pending),
            position=positions,
            recent=(recent, log_probs),
        )
        # XLA would compile a step outside a loop again for each number of recent tokens.
        _, state = write_tokens(step, rules, seeds, state, max_tokens=1, capacity=1)
        recent, log_probs = state.recent
        return state.pending, log_probs, recent

    def _warm_up(self) -> None:
        """Compiles the programs, so that the first request need not wait for them."""
        self._reader.read_piece([np.zeros((2,), np.int32)], self._empty_memory)
        for size in self._sizes:
            parts = [self._empty_memory] * size
            self._begin_batch(tf.nest.map_structure(lambda *each: tf.concat(each, 0), *parts))
            self._write_tokens()
        self._num_recent, self._memory, self._recent = 0, None, None

    def _release(self, row: Completion) -> None:
        with self._changed:
            row.state.is_busy, row.state.last_use = False, time.monotonic()
            if row.settings.session and not row.state.num_tokens:
                del self._sessions[row.settings.session]  # cancelled before it was read

    def _end_old_sessions(self) -> None:
        resting = {name: each for name, each in self._sessions.items() if not each.is_busy}
        oldest = sorted(resting, key=lambda name: resting[name].last_use)
        earliest = time.monotonic() - self._session_seconds
        for name in oldest:
            is_over = len(self._sessions) > self._max_sessions
            if is_over or resting[name].last_use < earliest:
                del self._sessions[name]

    def _fail(self, message: str) -> None:
        """Answers the texts at work with an error; their sessions end."""
        rows = [*self._rows, *self._paused, *([self._reading] if self._reading else [])]
        self._rows, self._paused, self._reading, self._num_recent = [], [], None, 0
        with self._changed:
            for row in rows:
                self._sessions.pop(row.settings.session, None)
        for row in rows:
            row.deliver(TextPiece(row.index, error=message))


def _row_of(memory: Any, place: int) -> Any:
    return tf.nest.map_structure(lambda each: each[place : place + 1], memory)
