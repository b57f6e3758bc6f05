"""Engine of the text server: one thread that reads prompts and writes all texts in one batch.

A text joins the batch when its prompt is read, and leaves the batch when the text ends. A long
prompt is read segment by segment, one segment between a few tokens of the other texts. Each change
of the batch moves the memory of all its texts, so texts join together where they can. Clients share
the batch equally: if a client has two places more than a waiting client, one of its texts pauses.
Texts of one session are written one after the other.

Two threads meet here. The event loop of the server calls `submit`, which may refuse waiting texts,
and sets `Completion.is_over` to cancel a text. `encode` and `close` may be called from any thread.
The thread of the engine does all the rest. Threads change the queue `_waiting` only while they hold
`_changed`, and `close` sets `_is_closed`. Only the thread of the engine changes the other
attributes.

Shape letters used in this module: V vocabulary.
"""

import collections
import itertools
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from txl_tf.causal_lm.causal_lm import TransformerXLCausalLM
from txl_tf.causal_lm.text_pieces import TextPieces, prompt_tokens
from txl_tf.config.generation import new_seed, sample_seeds
from txl_tf.data.tokenizers.tokenizer import excluded_tokens
from txl_tf.errors import UsageError
from txl_tf.generation.session import writing_engine
from txl_tf.generation.token_rules import note_read, token_bias
from txl_tf.imports import is_on_jax
from txl_tf.inference.engine import InferenceEngine
from txl_tf.inference.segment_reader import SegmentReader
from txl_tf.layers.compiled_parts import compiled
from txl_tf.serving.completion import Completion, TextPiece, TokenScore
from txl_tf.serving.completion_request import CompletionRequest, RequestError, require
from txl_tf.serving.metrics import ServerMetrics
from txl_tf.serving.session_state import SessionState
from txl_tf.serving.text_batch import TextBatch

_LOWEST_LOGPROB = -9999.0  # JSON has no infinity
# Tokens of a prompt that are scored at once. The log-probabilities of 267,735 words take 69 MB.
_SCORED_TOKENS = 64
# Turns that a text waits, so that other texts can join the batch together with it.
_MOST_DELAYS = 4


class TextEngine:
    """Worker that reads and writes the texts of all requests.

    It writes `max_rows` texts side by side, and `max_waiting` further requests may wait. If the
    queue is full, the client with the most waiting requests gives a place to a client that has two
    fewer. A session ends after `session_seconds` without a request. If there are more than
    `max_sessions`, the session that rested longest ends.
    """

    def __init__(
        self,
        lm: TransformerXLCausalLM,
        metrics: ServerMetrics,
        *,
        max_rows: int = 8,
        max_waiting: int = 16,
        max_sessions: int = 32,
        session_seconds: float = 1800.0,
    ) -> None:
        self.tokenizer: Any = lm.tokenizer
        self._vocabulary_size = lm.model.config.vocabulary_size
        self._metrics = metrics
        self._max_rows, self._max_waiting = max_rows, max_waiting
        self._max_sessions, self._session_seconds = max_sessions, session_seconds
        reading = writing_engine(lm.model, None, max_rows)
        empty_memory = reading.initial_memory(1)
        self._reader = SegmentReader(reading)
        evaluator = lm.evaluator()
        scoring = InferenceEngine(evaluator.model, config=evaluator.config, num_rows=1)
        self._scorer = SegmentReader(scoring)
        model = evaluator.model
        self._log_probs_of: Any
        if is_on_jax():
            self._log_probs_of = compiled(model.log_probs_of, model)
        else:
            # Texts of all lengths share a program; JAX has a program for each length.
            self._log_probs_of = tf.function(
                model.log_probs_of, autograph=False, reduce_retracing=True
            )
        counts = np.zeros((self._vocabulary_size,), np.int32)
        self._new_session = SessionState(empty_memory, counts, scoring.initial_memory(1))
        self._sessions: dict[str, SessionState] = {}  # the longest unused first
        self._changed = threading.Condition()
        self._waiting: list[Completion] = []
        self._reading: Completion | None = None
        self._running: list[Completion] = []  # in the batch, or joining it
        self._num_delays = 0  # turns that the first joining text has waited
        self._batch = TextBatch(lm.model, max_rows, empty_memory)
        # Compiles the program, so that the first request need not wait for it.
        next(self._reader.read_next([np.zeros((2,), np.int32)], empty_memory))
        metrics.waiting.set_function(lambda: len(self._waiting))
        metrics.running.set_function(lambda: self._num_running)
        metrics.sessions.set_function(lambda: len(self._sessions))
        self._is_closed = False
        self.thread = threading.Thread(target=self._run, name="text engine", daemon=True)
        self.thread.start()

    def encode(self, prompt: str | tuple[int, ...]) -> np.ndarray:
        """Returns the tokens of a prompt; an empty prompt has none.

        Raises RequestError if the prompt is not empty but has no tokens, or cannot be encoded.
        """
        text_or_ids = prompt if isinstance(prompt, str) else np.array(prompt)
        try:
            return prompt_tokens(self.tokenizer, text_or_ids) if prompt else np.zeros(0, np.int32)
        except (UsageError, ValueError, OverflowError) as error:
            raise RequestError(400, getattr(error, "what", str(error)), "prompt") from error

    @property
    def _num_running(self) -> int:
        return len(self._running) + (self._reading is not None)

    def submit(
        self,
        settings: CompletionRequest,
        prompts: Sequence[np.ndarray],
        owner: tuple[str, str],
        deliver: Callable[[TextPiece], object],
    ) -> list[Completion]:
        """Queues the texts of a request; RequestError if the queue or its bias forbids it."""
        seed = new_seed() if settings.seed is None else settings.seed
        excluded_ids = excluded_tokens(self.tokenizer, settings.allow_unknown)
        try:
            bias = token_bias(settings, excluded_ids, self._vocabulary_size)
        except ValueError as error:
            raise RequestError(400, str(error), "logit_bias") from error
        texts = itertools.product(prompts, sample_seeds(seed, settings.n))
        completions = [
            Completion(
                index=index,
                settings=settings,
                seed=seed,
                owner=owner,
                deliver=deliver,
                prompt_ids=prompt_ids,
                bias=bias,
            )
            for index, (prompt_ids, seed) in enumerate(texts)
        ]
        with self._changed:
            require(not self._is_closed, "The server is shutting down.", status=503)
            busy = RequestError(503, "The server is busy; ask again later.")
            # Cancelled texts are dropped, unless their sessions must be kept.
            self._waiting = [text for text in self._waiting if text.state or not text.is_over]
            active = {text.owner for text in (*self._running, *self._waiting) if text.state}
            owners = dict.fromkeys(text.owner for text in self._waiting)
            requests = [request for request in owners if request not in active]
            if len(requests) >= self._max_waiting + max(0, self._max_rows - self._num_running):
                counts = collections.Counter(client for client, _ in requests)
                client, most = counts.most_common(1)[0]
                if most < counts[owner[0]] + 2:
                    raise busy
                newest = [request for request in requests if request[0] == client][-1]
                for text in self._waiting:
                    if text.owner == newest:
                        self._refuse(text, busy)
            self._waiting.extend(completions)
            self._changed.notify_all()
        return completions

    def close(self, timeout_seconds: float) -> None:
        """Stops the thread after a turn, and answers all texts with an error."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self.thread.join(timeout_seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._waiting or self._running or self._reading or self._is_closed
                )
            if self._is_closed:
                return self._end_all(RequestError(503, "The server is shutting down."))
            try:
                self._turn()
            except Exception as error:  # answered, and the next request may work
                traceback.print_exc()
                self._end_all(
                    RequestError(
                        500, f"The text cannot be written: {type(error).__name__}: {error}"
                    )
                )

    def _turn(self) -> None:
        """Reads a piece of waiting prompts, and writes a few tokens of every text."""
        # 1. Ended texts leave, and a client with many texts may have to wait.
        for completion in filter(lambda each: each.is_over, self._running):
            self._release(completion)
        self._running = rows = [text for text in self._running if not text.is_over]
        self._pause_one(rows)
        # 2. Whole short prompts are read until the batch is full, or one segment of a long prompt.
        while len(rows) < self._max_rows:
            self._reading = text = self._reading or self._next_waiting(rows)
            if text is None:
                break
            text.reading = text.reading or self._read(text)
            if not text.is_over:
                next(text.reading, None)
            if text.is_over:
                self._release(text)
            elif text.state:
                rows.append(text)
            else:
                break  # the rest is read after some tokens of the other texts
            self._reading = None
        # 3. The batch changes if it must, see `_must_regroup`.
        if self._must_regroup(rows):
            self._batch.regroup(rows)
            self._num_delays = 0
        # 4. Every text of the batch gets tokens.
        if num_rows := sum(not text.is_over for text in self._batch.rows):
            self._metrics.rows.observe(num_rows)
            for text, token_id, log_probs in self._batch.write_tokens():
                self._take_token(text, token_id, log_probs)

    def _must_regroup(self, rows: Sequence[Completion]) -> bool:
        """True if texts join the batch or leave it now.

        Joining texts wait a few turns for other prompts that are being read. The place of an ended
        text stays unused until the others fit a smaller program.
        """
        in_batch = [text for text in rows if text in self._batch.rows]
        if len(in_batch) < len(rows):
            self._num_delays += 1
            is_last = self._reading is None or len(rows) == self._max_rows
            if not in_batch or is_last or self._num_delays > _MOST_DELAYS:
                return True
        is_paused = any(not text.is_over and text not in rows for text in self._batch.rows)
        return is_paused or self._batch.must_change(len(in_batch))

    def _pause_one(self, rows: list[Completion]) -> None:
        """Takes a text out of a full batch whose client has two places more than a waiting one."""
        places = collections.Counter(text.owner[0] for text in rows)
        with self._changed:
            ready = [places[text.owner[0]] for text in self._ready(rows)]
            least = min(ready, default=self._max_rows)
            candidate = max(reversed(rows), key=lambda text: places[text.owner[0]], default=None)
            is_full = len(rows) == self._max_rows and self._reading is None
            if is_full and candidate and places[candidate.owner[0]] >= least + 2:
                rows.remove(candidate)
                self._waiting.append(candidate)

    def _ready(self, running: Sequence[Completion]) -> list[Completion]:
        """Returns the waiting texts whose sessions rest."""
        texts = [text for text in (*running, *self._waiting) if text.state]
        busy = {text.settings.session for text in texts} - {""}
        return [text for text in self._waiting if text.state or text.settings.session not in busy]

    def _next_waiting(self, running: Sequence[Completion]) -> Completion | None:
        """Takes the text whose client and request have the fewest places."""
        places = collections.Counter(key for text in running for key in (text.owner, text.owner[0]))
        with self._changed:
            text = min(
                self._ready(running),
                key=lambda text: (
                    places[text.owner[0]],
                    places[text.owner],
                    text.state is None,
                ),
                default=None,
            )
            if text is not None:
                self._waiting.remove(text)
        return text

    def _read(self, text: Completion) -> Iterator[None]:
        """Scores and reads a prompt after its session, and pauses between two segments.

        At each pause the texts of the batch get tokens, so that a long prompt does not stop them.
        The prompt is read when `text.state` is set.
        """
        # 1. Sessions that rested too long, or that are too many, end.
        settings, prompt_ids = text.settings, text.prompt_ids
        self._metrics.queue_seconds.observe(time.monotonic() - text.submit_seconds)
        earliest = time.monotonic() - self._session_seconds
        sessions = list(self._sessions.items())[-self._max_sessions :]
        self._sessions = {name: state for name, state in sessions if state.last_use >= earliest}
        # 2. The text continues a session, whose last tokens are unread, or a new one.
        state = self._sessions.get(settings.session, self._new_session)
        unread = np.append(state.unread, prompt_ids)
        if not len(unread):
            return self._refuse(
                text,
                RequestError(
                    404,
                    "The prompt must have a token, because there is no session to continue.",
                    "prompt",
                ),
            )
        # 3. With `echo` and `logprobs` the scores of the prompt.
        score_ids, score_memory = np.append(state.unscored, prompt_ids), state.score_memory
        if settings.echo and settings.logprobs is not None:
            score_memory = yield from self._score_prompt(text, score_ids, score_memory)
            score_ids = score_ids[-1:]
        # 4. Memory of all tokens but the last, which the batch reads when it writes.
        text.memory = state.memory
        for batch, _, text.memory in self._reader.read_next([unread[:-1]], state.memory):
            if batch.start + batch.lengths[0] < len(unread) - 1:
                yield
        # 5. The state that the text begins with.
        text.pieces = TextPieces(
            self.tokenizer, np.append(state.known_ids, prompt_ids), settings.stop
        )
        uses = state.uses.copy()
        note_read(uses, prompt_ids)
        text.state = state._replace(
            memory=text.memory if settings.session else None,
            uses=uses,
            score_memory=score_memory,
            unread=unread[-1:],
            unscored=score_ids,
            known_ids=text.pieces.newest_ids,
            num_tokens=state.num_tokens + len(prompt_ids),
        )
        self._metrics.prompt_tokens.inc(len(prompt_ids))
        # 6. The prompt as text; a request for 0 tokens ends here.
        echo = self.tokenizer.decode_text(prompt_ids) if settings.echo else ""
        text.num_echoed = len(echo)
        if echo or not settings.max_tokens:
            text.deliver_piece(echo, None if settings.max_tokens else "length")

    def _score_prompt(
        self, text: Completion, unscored: np.ndarray, memory: Any
    ) -> Generator[None, None, Any]:
        """Adds the prompt to the text with its scores; returns the memory after all but its end.

        `unscored` are the tokens of the session that have no score yet, and the prompt. The
        memory is separate from that of the texts, because evaluations may remember another length.
        The first token of a new text has no score. All tokens but the last are read, and the hidden
        state of each token scores the next one. The generator pauses after every segment.
        """
        prompt_ids = text.prompt_ids
        text.pieces = TextPieces(self.tokenizer, prompt_ids[:0])
        if len(unscored) == len(prompt_ids):
            self._add_token(text, int(prompt_ids[0]))
        segments = self._scorer.read_next([unscored[:-1]], memory)
        for batch, hidden, memory in segments:  # noqa: B007
            targets = unscored[1 + batch.start :][: batch.lengths[0]]
            # Targets before the prompt belong to earlier texts of the session.
            first = max(0, len(unscored) - len(prompt_ids) - 1 - batch.start)
            for start in range(first, len(targets), _SCORED_TOKENS):
                states = hidden[:, start : start + _SCORED_TOKENS]
                log_probs = np.asarray(self._log_probs_of(states)[0])
                for token_id, of_token in zip(targets[start:], log_probs, strict=False):
                    self._add_token(text, int(token_id), of_token)
            yield
        return memory

    def _add_token(self, text: Completion, token_id: int, log_probs: Any = None) -> str:
        """Adds a token to a text, with its score if log-probabilities `(V,)` are given.

        Returns the text that later tokens cannot change.
        """
        if text.settings.logprobs is None:
            return text.pieces.add(token_id)
        ids, logprob, best = [token_id], None, []
        if log_probs is not None:
            most = min(text.settings.logprobs, self._vocabulary_size)
            top_ids = np.argpartition(-log_probs, most - 1)[:most]
            ids += sorted(top_ids.tolist(), key=lambda k: (-log_probs[k], k))
            logprob, *best = np.maximum(log_probs[ids], _LOWEST_LOGPROB).tolist()
        token, *others = text.pieces.token_texts(ids)
        piece = text.pieces.add(token_id)
        top = dict(zip(reversed(others), reversed(best), strict=True)) if best else None
        text.scores.append(TokenScore(token, text.num_echoed + text.pieces.offset, logprob, top))
        return piece

    def _take_token(self, text: Completion, token_id: int, log_probs: Any) -> None:
        self._metrics.completion_tokens.inc()
        piece, ignores_end = "", text.settings.ignore_eos
        is_end = token_id == self.tokenizer.end_token_id and not ignores_end
        text.written_ids.append(token_id)
        if not is_end:
            text.token_ids.append(token_id)
            piece = self._add_token(text, token_id, log_probs)
        if text.pieces.is_over:
            end = text.num_echoed + text.pieces.num_characters
            text.scores = [score for score in text.scores if score.text_offset < end]
        is_longest = len(text.written_ids) == text.settings.max_tokens
        reason = "stop" if is_end or text.pieces.is_over else "length" if is_longest else None
        piece += text.pieces.rest() if reason else ""
        if piece or reason:
            text.deliver_piece(piece, reason)

    def _release(self, text: Completion) -> None:
        """Keeps the session of a text that was read."""
        name, text.memory = text.settings.session, None
        if name and text.state:
            self._sessions.pop(name, None)
            self._sessions[name] = text.next_state()  # the newest

    def _end_all(self, error: RequestError) -> None:
        """Answers all texts with an error; the sessions of those that were read end."""
        with self._changed:
            rows = [*self._running, *self._waiting, *filter(None, [self._reading])]
            self._waiting, self._reading, self._running, self._batch.rows = [], None, [], []
        for text in rows:
            if text.state:
                self._sessions.pop(text.settings.session, None)
            self._refuse(text, error)

    def _refuse(self, text: Completion, error: RequestError) -> None:
        text.is_over = True
        text.deliver(TextPiece(text.index, error=error))
