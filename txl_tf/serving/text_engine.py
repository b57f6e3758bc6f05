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
from txl_tf.causal_lm.text import TextPieces
from txl_tf.config.base import DEFAULT_NEW_TOKENS, not_negative, positive
from txl_tf.config.generation import GenerationConfig
from txl_tf.data.tokenizers.tokenizer import excluded_tokens
from txl_tf.generation.decoding import (
    NOTHING,
    DecodingState,
    PromptReader,
    TokenRules,
    joined_rows,
    write_tokens,
)
from txl_tf.generation.session import CAPACITY, SETTINGS, writing_engine
from txl_tf.samplers import RandomSampler, RepetitionPenalty

_LOWEST_LOGPROB = -9999.0  # JSON has no infinity
_SCORED_TOKENS = 64  # at once: a large vocabulary has a large array of scores
_CONTEXT_TOKENS = 1024  # of a prompt, for the text of the tokens after it
_SETTINGS = {**SETTINGS, "repetition_penalty": "float32", "allow_unknown": "bool"}


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
    """Whether texts begin with their prompts."""
    logprobs: Annotated[int | None, not_negative(5)] = None
    """Alternatives that are returned for each token."""
    return_token_ids: bool = False
    """Whether choices have `token_ids` too."""
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
    token_ids: Sequence[int] = ()
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
    token_ids: list[int] = dataclasses.field(init=False, default_factory=list)

    @property
    def scores_prompt(self) -> bool:
        """True if the tokens of the prompt are scored."""
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
        self._engine = writing_engine(lm.model, None, max_rows)
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
        self._sessions: dict[str, TextState] = {}
        self._reading: Completion | None = None
        self._rows: list[Completion] = []
        self._num_recent = 0
        self._is_closed = False
        # Compiles the programs, so that the first request need not wait for them.
        self._reader.read_piece([np.zeros((2,), np.int32)], self._empty_memory)
        for size in self._sizes:
            self._begin_batch([self._empty_memory] * size)
            self._write_tokens()
        self._num_recent = 0
        self._thread = threading.Thread(target=self._run, name="text engine", daemon=True)
        self._thread.start()

    @property
    def gauges(self) -> dict[str, int]:
        """Numbers of texts that wait and are written, and of sessions."""
        running = len(self._rows) + (self._reading is not None)
        sessions = len(self._sessions)
        return {"waiting": len(self._waiting), "running": running, "sessions": sessions}

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
                self._waiting.append(paused)

    def _free_texts(self) -> list[Completion]:
        """Returns the waiting texts that have paused or whose session has no other text at work."""
        states = [(row, self._sessions.get(row.settings.session)) for row in self._waiting]
        return [
            row for row, state in states if row.num_written or state is None or not state.is_busy
        ]

    def _next_waiting(self, running: Sequence[Completion]) -> Completion | None:
        """Takes the text whose client and request have the fewest places, to read its prompt."""
        places = collections.Counter(key for row in running for key in (row.owner, row.owner[0]))
        with self._changed:
            self._end_old_sessions()
            row = min(
                self._free_texts(),
                key=lambda row: (places[row.owner[0]], places[row.owner], not row.num_written),
                default=None,
            )
            if row is None:
                return None
            self._waiting.remove(row)
            if row.num_written:
                return row
            nothing = np.zeros((0,), np.int32)
            is_used = np.zeros((self.vocabulary_size,), bool)
            state = TextState(self._empty_memory, is_used, nothing, nothing)
            if row.settings.session:
                state = self._sessions.setdefault(row.settings.session, state)
            state.is_busy = True
        row.state, row.memory = state, state.memory
        row.unread = np.append(state.pending, row.prompt_ids).astype(np.int32)
        if row.scores_prompt and not len(state.pending):
            (token,) = self.tokenizer.decode_each(row.prompt_ids[:1])
            row.scores.append(TokenScore(token, 0))
            row.num_echoed = len(token)
        return row

    def _read_piece(self, row: Completion) -> bool:
        """Reads a segment of a prompt; returns True if only its last token is left."""
        count = len(row.unread) - 1
        if count:
            hidden, row.memory, length = self._reader.read_piece([row.unread[:-1]], row.memory)
            count = min(count, length)
            following, row.unread = row.unread[1 : count + 1], row.unread[count:]
            for start in range(0, count, _SCORED_TOKENS) if row.scores_prompt else ():
                places = slice(start, min(count, start + _SCORED_TOKENS))
                padding = [[0, 0], [0, _SCORED_TOKENS - places.stop + start], [0, 0]]
                log_probs = self._log_probs_of(tf.pad(hidden[:, places], padding))[0]
                for token_id, scores in zip(following[places], log_probs, strict=False):
                    row.scores.append(self._score(row, int(token_id), scores, row.num_echoed))
                    row.num_echoed += len(row.scores[-1].token)
        return len(row.unread) == 1

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
        memories = []
        if self._rows:
            count = tf.constant(self._num_recent, tf.int32)
            settled = self._finish(self._memory, self._state.recent[0], count)
        for place, row in enumerate(self._rows):
            memory = tf.nest.map_structure(lambda each, k=place: each[k : k + 1], settled)
            if row in staying:
                memories.append(memory)
                continue
            row.state.memory = memory
            if row not in self._waiting:
                self._release(row)
        memories += [row.state.memory for row in joining]
        self._rows, self._num_recent = [*staying, *joining], 0
        if memories:
            size = next(size for size in self._sizes if size >= len(memories))
            self._begin_batch(memories + [self._empty_memory] * (size - len(memories)))

    def _begin_batch(self, memories: list[Any]) -> None:
        rows, size = self._rows, len(memories)

        def tensor(values: list[Any], dtype: str = "int32") -> tf.Tensor:
            return tf.constant(np.array(values + [1] * (size - len(rows)), dtype))

        self._memory = joined_rows(memories)
        is_used = np.zeros((size, self.vocabulary_size), bool)
        for place, row in enumerate(rows):
            is_used[place] = row.state.is_used
        self._settings = {
            name: tensor([getattr(row.settings, name) for row in rows], dtype)
            for name, dtype in _SETTINGS.items()
        }
        self._settings["seed"] = tensor([row.seed for row in rows])
        recent = self._engine.begin(self._memory, capacity=CAPACITY)
        self._state = DecodingState(
            pending=tensor([row.state.pending[0] for row in rows]),
            is_finished=tensor([False for _ in rows], "bool"),
            is_used=tf.constant(is_used),
            lengths=tf.zeros([size], tf.int32),
            position=tensor([row.state.num_written for row in rows]),
            recent=(recent, tf.zeros([size, self.vocabulary_size])),
        )

    def _write_tokens(self) -> None:
        constants = self._constants[self._state.pending.shape[0]]
        self._state = self._step(self._memory, constants, self._state, self._settings)
        self._num_recent += 1
        log_probs = self._state.recent[1]
        for place, (row, token_id) in enumerate(
            zip(self._rows, self._state.pending.numpy().tolist(), strict=False)
        ):
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
        state = row.state
        state.pending = np.array([token_id], np.int32)
        state.is_used[token_id] = True
        state.num_tokens += 1
        state.num_written += 1
        row.num_written += 1
        self.num_written_tokens += 1
        if token_id == self.tokenizer.end_token_id:
            self._deliver(row, row.pieces.rest(), "stop")
            return
        row.token_ids.append(token_id)
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
        scores, ids, row.scores, row.token_ids = row.scores, row.token_ids, [], []
        row.deliver(TextPiece(row.index, text, scores, ids, finish_reason))

    def _release(self, row: Completion) -> None:
        with self._changed:
            row.state.is_busy, row.state.last_use = False, time.monotonic()
            state = self._sessions.pop(row.settings.session, None)
            if state is not None and state.num_tokens:  # else cancelled before it was read
                self._sessions[row.settings.session] = state  # the newest is the last

    def _end_old_sessions(self) -> None:
        earliest = time.monotonic() - self._session_seconds
        for name, state in list(self._sessions.items()):
            is_over = len(self._sessions) > self._max_sessions
            if not state.is_busy and (is_over or state.last_use < earliest):
                del self._sessions[name]

    def _fail(self, message: str) -> None:
        """Answers the texts at work with an error; their sessions end."""
        with self._changed:
            paused = [row for row in self._waiting if row.num_written]
            rows = [*self._rows, *paused, *([self._reading] if self._reading else [])]
            self._waiting = [row for row in self._waiting if not row.num_written]
            self._rows, self._reading, self._num_recent = [], None, 0
            for row in rows:
                self._sessions.pop(row.settings.session, None)
        for row in rows:
            row.deliver(TextPiece(row.index, error=message))
