"""Engine of the text server: one thread that reads prompts and writes all texts in one batch.

A text joins the batch when its prompt is read, and leaves it when it ends. A long prompt is read
segment by segment, one segment between two tokens of the other texts. Clients share the batch
equally: if a client has two places more than a waiting client, one of its texts pauses.

Shape letters used in this module: R rows, T tokens of a piece, V vocabulary.
"""

import collections
import dataclasses
import itertools
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.causal_lm.causal_lm import TransformerXLCausalLM
from txl_tf.causal_lm.text_pieces import TextPieces
from txl_tf.config.base import DEFAULT_NEW_TOKENS, FrozenConfig, not_negative, positive
from txl_tf.config.generation import GenerationConfig, new_seed, sample_seeds
from txl_tf.data.tokenizers.tokenizer import excluded_tokens
from txl_tf.generation.decoding import (
    PENALTIES,
    DecodingState,
    note_read,
    note_written,
    token_bias,
)
from txl_tf.generation.session import CAPACITY, writing_engine
from txl_tf.inference.engine import InferenceEngine
from txl_tf.inference.segment_reader import SegmentReader, joined_rows
from txl_tf.samplers import SETTINGS
from txl_tf.serving.batch_programs import BatchPrograms

_LOWEST_LOGPROB = -9999.0  # JSON has no infinity
_SESSION_SECONDS = 5.0  # that a request waits for the text before it
_SCORED_TOKENS = 64  # at once: a large vocabulary has a large array of scores
_SETTINGS = {**SETTINGS, **dict.fromkeys(PENALTIES, "float32")}


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


class SessionState(NamedTuple):
    """State of a session between its texts.

    Memory ends before the `unread` tokens, which end with the newest one. `uses` `(V,)` are as
    in a `DecodingState`. `known_ids` are the newest tokens, which the text of others depends on.
    `position` counts the tokens drawn, and `num_tokens` all tokens, prompts included. Scores
    have a memory of their own, of the lengths of evaluations, which ends before the `unscored`
    tokens.
    """

    memory: Any
    uses: np.ndarray
    score_memory: Any
    unread: np.ndarray = np.zeros((0,), np.int32)
    unscored: np.ndarray = np.zeros((0,), np.int32)
    known_ids: np.ndarray = np.zeros((0,), np.int32)
    position: int = 0
    num_tokens: int = 0
    last_use: float = 0.0


@dataclasses.dataclass(eq=False, kw_only=True)
class Completion:
    """One text of a request and its progress.

    The thread of the engine calls `deliver` with each `TextPiece`. `owner` is the client and its
    request. `state` is the session's when the prompt was read. `memory`, of a text outside
    of the batch, ends before `newest`. `kept_ids` are the tokens of a text that ended before a
    stop text. `is_over` is true if the text ended or was cancelled.
    """

    index: int
    settings: CompletionRequest
    seed: int
    owner: tuple[str, str]
    deliver: Callable[[TextPiece], object]
    prompt_ids: np.ndarray
    bias: np.ndarray | None
    state: SessionState
    pieces: TextPieces
    memory: Any = None
    uses: Any = None
    newest: int | None = None
    kept_ids: np.ndarray | None = None
    is_over: bool = False
    written_ids: list[int] = dataclasses.field(default_factory=list)
    num_echoed: int = 0
    scores: list[TokenScore] = dataclasses.field(default_factory=list)
    token_ids: list[int] = dataclasses.field(default_factory=list)

    @property
    def scores_prompt(self) -> bool:
        """True if the tokens of the prompt are scored."""
        return self.settings.echo and self.settings.logprobs is not None

    @property
    def num_written(self) -> int:
        """The tokens drawn for this text."""
        return len(self.written_ids)

    @property
    def num_tokens(self) -> int:
        """The tokens of the session, this text included."""
        kept_ids = self.kept_ids
        return self.state.num_tokens + (self.num_written if kept_ids is None else len(kept_ids))

    def next_state(self) -> SessionState:
        """Returns the state of the session after the text; it does not know a stop text."""
        state = self.state._replace(
            position=self.state.position + self.num_written,
            num_tokens=self.num_tokens,
            last_use=time.monotonic(),
        )
        if self.kept_ids is None:
            return state._replace(
                memory=self.memory,
                uses=self.uses,
                unread=np.array([self.newest], np.int32),
                unscored=np.append(state.unscored, self.written_ids).astype(np.int32),
                known_ids=self.pieces.newest_ids,
            )
        uses = state.uses.copy()
        note_written(uses, self.kept_ids)
        # Memory ends with the prompt: the next request reads the text, faster than it was written.
        return state._replace(
            uses=uses,
            unread=np.append(state.unread, self.kept_ids),
            unscored=np.append(state.unscored, self.kept_ids),
            known_ids=np.append(state.known_ids, self.kept_ids),
        )


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
        reading = writing_engine(lm.model, None, max_rows)
        self._reader = SegmentReader(reading)
        evaluator = lm.evaluator()
        scoring = InferenceEngine(evaluator.model, config=evaluator.config, num_rows=1)
        self._scorer = SegmentReader(scoring)
        self._log_probs_of = tf.function(evaluator.model.log_probs_of, autograph=False)
        # A program for a single text and one for a full batch.
        self._programs_of = {size: BatchPrograms(lm.model, size) for size in {1, max_rows}}
        self._empty_memory = reading.initial_memory(1)
        unused = np.zeros((self.vocabulary_size,), np.int32)
        self._new_session = SessionState(self._empty_memory, unused, scoring.initial_memory(1))
        self._changed = threading.Condition()
        self._waiting: list[Completion] = []
        self._sessions: dict[str, SessionState] = {}
        self._busy: set[str] = set()
        self._reading: Completion | None = None
        self._rows: list[Completion] = []
        self._is_closed = False
        # Compiles the programs, so that the first request need not wait for them.
        next(self._reader.read_next([np.zeros((2,), np.int32)], self._empty_memory))
        for size in self._programs_of:
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
            state = self._sessions.get(name, self._new_session)
            if not len(state.unread) and not all(map(len, prompts)):
                what = "The prompt must have a token, because there is no session to continue."
                raise RequestError(404 if name else 400, what, "prompt")
            excluded = excluded_tokens(self.tokenizer, settings.allow_unknown)
            try:
                bias = token_bias(settings, excluded, self.vocabulary_size)
            except ValueError as error:
                raise RequestError(400, str(error), "logit_bias") from error
            begun = []
            for index, (prompt_ids, seed) in enumerate(texts):
                row = Completion(
                    index=index,
                    settings=settings,
                    seed=seed,
                    owner=owner,
                    deliver=deliver,
                    prompt_ids=prompt_ids,
                    bias=bias,
                    state=state._replace(
                        unread=np.append(state.unread, prompt_ids),
                        unscored=np.append(state.unscored, prompt_ids),
                    ),
                    pieces=TextPieces(self.tokenizer, prompt_ids[:0]),
                )
                if row.scores_prompt and not len(state.unread):
                    self._add_token(row, int(prompt_ids[0]))
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
        """Reads or scores a segment; returns True if only the last token of a prompt is left."""
        state = row.state
        if row.scores_prompt and len(state.unscored) > 1:
            self._score_piece(row)
            return False
        if len(state.unread) > 1:
            batch, _, memory = next(self._reader.read_next([state.unread[:-1]], state.memory))
            row.state = state._replace(memory=memory, unread=state.unread[batch.lengths[0] :])
        return len(row.state.unread) == 1

    def _score_piece(self, row: Completion) -> None:
        """Reads a segment for scores, and adds the ones of the prompt."""
        unscored = row.state.unscored
        batch, hidden, memory = next(
            self._scorer.read_next([unscored[:-1]], row.state.score_memory)
        )
        count, first = batch.lengths[0], max(0, len(unscored) - 1 - len(row.prompt_ids))
        row.state = row.state._replace(score_memory=memory, unscored=unscored[count:])
        targets, hidden = unscored[1 + first : 1 + count], hidden[:, first:count]
        for start in range(0, len(targets), _SCORED_TOKENS):
            states = hidden[:, start : start + _SCORED_TOKENS]
            padding = [[0, 0], [0, _SCORED_TOKENS - states.shape[1]], [0, 0]]
            log_probs = self._log_probs_of(tf.pad(states, padding))[0]
            pairs = zip(targets[start : start + _SCORED_TOKENS], log_probs, strict=False)
            for token_id, of_token in pairs:
                self._add_token(row, int(token_id), of_token)

    def _add_token(self, row: Completion, token_id: int, log_probs: tf.Tensor | None = None) -> str:
        """Adds a token to a text, with its score among the log-probabilities `(V,)` of all tokens.

        Returns the text that later tokens cannot change.
        """
        ids, logprob, best = [token_id], None, []
        if log_probs is not None:
            count = min(row.settings.logprobs or 0, self.vocabulary_size)
            values, top_ids = tf.math.top_k(log_probs, count)
            ids += top_ids.numpy().tolist()
            numbers = np.maximum([log_probs[token_id], *values], _LOWEST_LOGPROB)
            logprob, *best = numbers.tolist()
        token, *others = row.pieces.token_texts(ids)
        piece = row.pieces.add(token_id)
        top = dict(zip(reversed(others), reversed(best), strict=True)) if best else None
        row.scores.append(TokenScore(token, row.num_echoed + row.pieces.offset, logprob, top))
        return piece

    def _remember_prompt(self, row: Completion) -> None:
        state, prompt_ids, settings = row.state, row.prompt_ids, row.settings
        row.pieces = TextPieces(
            self.tokenizer, np.append(state.known_ids, prompt_ids), settings.stop
        )
        row.uses = state.uses.copy()
        note_read(row.uses, prompt_ids)
        row.memory, row.newest = state.memory, int(state.unread[0])
        row.state = state._replace(
            memory=state.memory if settings.session else None,
            uses=row.uses.copy(),
            known_ids=row.pieces.newest_ids,
            num_tokens=state.num_tokens + len(prompt_ids),
        )
        self._num_prompt_tokens += len(prompt_ids)
        if settings.session:
            self._sessions[settings.session] = row.state
        if settings.echo:
            echoed = self.tokenizer.decode_text(prompt_ids)
            row.num_echoed = len(echoed)
            self._deliver(row, echoed)

    def _regroup(self, staying: list[Completion], joining: list[Completion]) -> None:
        """Brings memories up to date, and makes the batch of other texts."""
        memories = []
        if self._rows:
            settled = self._programs.finish(self._state, self._num_recent)
        for place, row in enumerate(self._rows):
            memory = tf.nest.map_structure(lambda each, k=place: each[k : k + 1], settled)
            if row in staying:
                memories.append(memory)
                continue
            row.memory = memory
            if row not in self._waiting:
                self._release(row)
        memories += [row.memory for row in joining]
        for row in joining:
            row.memory = None
        self._rows = [*staying, *joining]
        if memories:
            size = min(size for size in self._programs_of if size >= len(memories))
            self._begin_batch(memories + [self._empty_memory] * (size - len(memories)))

    def _begin_batch(self, memories: list[Any]) -> None:
        rows, size = self._rows, len(memories)

        def tensor(values: list[Any], dtype: str = "int32") -> tf.Tensor:
            return tf.constant(np.array(values + [1] * (size - len(rows)), dtype))

        self._programs, self._num_recent = self._programs_of[size], 0
        uses = np.zeros((size, self.vocabulary_size), np.int32)
        bias = np.zeros(uses.shape, np.float32)
        for place, row in enumerate(rows):
            uses[place], bias[place] = row.uses, 0.0 if row.bias is None else row.bias
        self._settings = {
            name: tensor([getattr(row.settings, name) for row in rows], dtype)
            for name, dtype in _SETTINGS.items()
        }
        self._settings |= {"seed": tensor([row.seed for row in rows]), "bias": tf.constant(bias)}
        recent = self._programs.begin(joined_rows(memories))
        self._state = DecodingState.begin(
            tensor([row.newest for row in rows]),
            (recent, tf.zeros(uses.shape)),
            CAPACITY,
            uses=tf.constant(uses),
            position=tensor([row.state.position + row.num_written for row in rows]),
        )

    def _write_tokens(self) -> None:
        self._state = self._programs.write_token(self._state, self._settings)
        self._num_recent += 1
        logits = self._state.recent[1]
        token_ids = self._state.pending.numpy().tolist()
        for place, (row, token_id) in enumerate(zip(self._rows, token_ids, strict=False)):
            of_token = None if row.settings.logprobs is None else logits[place]
            self._take_token(row, token_id, of_token)

    def _take_token(self, row: Completion, token_id: int, logits: tf.Tensor | None) -> None:
        row.newest = token_id
        note_written(row.uses, np.array([token_id]))
        row.written_ids.append(token_id)
        self._num_written_tokens += 1
        if token_id == self.tokenizer.end_token_id:
            self._deliver(row, row.pieces.rest(), "stop")
            return
        row.token_ids.append(token_id)
        if logits is None:
            piece = row.pieces.add(token_id)
        else:
            piece = self._add_token(row, token_id, tf.nn.log_softmax(logits))
        if row.pieces.is_over:
            row.kept_ids = row.pieces.kept_ids()
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
            state = self._sessions.pop(name, None)
            if state is not None:  # else cancelled before it was read
                is_read = row.newest is not None
                self._sessions[name] = row.next_state() if is_read else state  # the last

    def _end_old_sessions(self) -> None:
        earliest = time.monotonic() - self._session_seconds
        for name, state in list(self._sessions.items()):
            is_surplus = len(self._sessions) > self._max_sessions
            if name not in self._busy and (is_surplus or state.last_use < earliest):
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
