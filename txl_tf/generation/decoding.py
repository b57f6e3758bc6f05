"""Decoding: prompts, the sampling loop, beam search, and the rules that end a text.

Shape letters used in this module:
  B rows, W beams of each, R = B * W rows, P prompt length, T tokens of a piece,
  C capacity, V vocabulary, S tokens to write.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from keras import ops

from txl_tf.hashed_bits import mixed
from txl_tf.inference.engine import InferenceEngine
from txl_tf.layers.adaptive_embedding import check_token_ids
from txl_tf.samplers import BeamSampler, RandomSampler, RepetitionPenalty

Sampler = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
"""A function of logits `(R, V)` and seeds `(R, 2)` that returns tokens `(R,)`."""

NOTHING = -1
"""Marks the end of a row in the results."""


def prompt_rows(prompt_ids: Any, num_rows: int, vocabulary_size: int) -> list[np.ndarray]:
    """Converts prompts to `num_rows` int32 vectors; ValueError for an empty one."""
    rows = [np.asarray(row) for row in prompt_ids]
    if len(rows) != num_rows or any(row.ndim != 1 or not row.size for row in rows):
        raise ValueError(
            f"`prompt_ids` must have {num_rows} rows and at least one token in every row. "
            f"Received: shapes={[row.shape for row in rows]}"
        )
    for row in rows:
        check_token_ids(row, vocabulary_size, "prompt_ids")
    return [row.astype(np.int32) for row in rows]


class PromptReader:
    """Reader of texts that may end at different places, in few programs."""

    def __init__(self, engine: InferenceEngine) -> None:
        self._engine = engine
        self._segment_length = engine.model.config.segment_length
        self._read = tf.function(engine.read, autograph=False)
        # Only the newest length: the keys of all distances take memory.
        self._constants = functools.lru_cache(maxsize=1)(engine.constants)

    def __call__(self, rows: list[np.ndarray], memory: Any) -> Any:
        """Reads `B` int vectors, some of them possibly empty; returns the next memory."""
        if self._engine.keeps_states and len({len(row) for row in rows}) > 1:
            alone = [
                self([row], tf.nest.map_structure(lambda each, b=b: each[b : b + 1], memory))
                for b, row in enumerate(rows)
            ]
            return tf.nest.map_structure(lambda *each: tf.concat(each, axis=0), *alone)
        while any(len(row) for row in rows):
            _, memory, length = self.read_piece(rows, memory)
            rows = [row[length:] for row in rows]
        return memory

    def read_piece(self, rows: list[np.ndarray], memory: Any) -> tuple[tf.Tensor, Any, int]:
        """Reads the next segment of `B` int vectors, or less where they end.

        Where the engine keeps states, they must have equal lengths. Returns the hidden states
        `(B, T, D)`, the next memory and `T`.
        """
        longest = max(len(row) for row in rows)
        if self._engine.keeps_states:
            length = min(longest, self._segment_length)
            token_ids = np.stack([row[:length] for row in rows])
            return *self._read(tf.constant(token_ids, tf.int32), memory), length
        length = _piece_length(longest, self._segment_length)
        token_ids, lengths = _padded(rows, length)
        lengths = tf.constant(common_length(lengths), tf.int32)
        read = self._read(
            tf.constant(token_ids), memory, lengths=lengths, constants=self._constants(length)
        )
        return *read, length


def _piece_length(num_tokens: int, segment_length: int) -> int:
    """Returns how many of the remaining tokens to read at once.

    This is `segment_length` or the smallest sufficient power of 2: every length costs one more
    program to compile.
    """
    if num_tokens >= segment_length:
        return segment_length
    return min(segment_length, 1 << (num_tokens - 1).bit_length())


def _padded(rows: list[np.ndarray], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the beginnings of rows `(B, T)`, padded with zeros, and their lengths `(B,)`."""
    token_ids = np.zeros((len(rows), length), np.int32)
    for padded_row, row in zip(token_ids, rows, strict=True):
        padded_row[: len(row)] = row[:length]
    return token_ids, np.array([min(len(row), length) for row in rows], np.int32)


def common_length(lengths: np.ndarray) -> np.ndarray:
    """Returns a scalar if all lengths are equal, which is faster."""
    lengths = np.asarray(lengths, np.int32)
    return lengths[0] if (lengths == lengths[0]).all() else lengths


class TokenRules:
    """Tokens that end a text, tokens never written, and the repetition penalty."""

    def __init__(
        self,
        repetition_penalty: float,
        stop_token_ids: tuple[int, ...],
        excluded_token_ids: tuple[int, ...],
        vocabulary_size: int,
    ) -> None:
        self._penalty = None if repetition_penalty == 1.0 else RepetitionPenalty(repetition_penalty)
        self._stop_token_ids = stop_token_ids
        self._excluded_token_ids = excluded_token_ids
        self.vocabulary_size = vocabulary_size

    def apply(self, logits: tf.Tensor, is_used: tf.Tensor) -> tf.Tensor:
        """Returns the scores `(R, V)` to choose by; `is_used` is `(R, 0)` without penalty."""
        scores = logits if self._penalty is None else self._penalty(logits, is_used)
        return exclude(scores, self._excluded_token_ids)

    def use(self, is_used: tf.Tensor, token_ids: tf.Tensor) -> tf.Tensor:
        """Returns the next `is_used`, with tokens `(R,)` marked as used."""
        if self._penalty is None:
            return is_used
        return is_used | tf.one_hot(token_ids, self.vocabulary_size, True, False)

    def is_stop(self, token_ids: tf.Tensor) -> tf.Tensor:
        """Marks the tokens that end their texts, bool `(R,)`."""
        is_stop = tf.zeros_like(token_ids, tf.bool)
        for stop_token_id in self._stop_token_ids:
            is_stop |= token_ids == stop_token_id
        return is_stop


def exclude(logits: tf.Tensor, token_ids: Sequence[int]) -> tf.Tensor:
    """Returns logits `(R, V)` with some tokens at minus infinity."""
    for token_id in token_ids:
        logits = tf.where(tf.range(logits.shape[-1]) == token_id, -np.inf, logits)
    return logits


def drawing_seeds(seeds: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
    """Returns the seeds of one token, int32 `(R, 2)`, which do not depend on the row's index.

    `position` is a number, or `(R,)`.
    """
    first = mixed(tf.cast(position, tf.uint32))
    of_zero = tf.cast(tf.stack([first, mixed(first)], axis=-1), tf.int32)  # [2] or [R, 2]
    # Not a stack with zeros: TensorFlow folds it to one row if the seed is a constant.
    return of_zero + seeds[:, None] * tf.constant([[1, 0]])


class DecodingState(NamedTuple):
    """State that changes from token to token.

    `pending` int32 `(R,)` are the newest tokens, not read yet, and `is_finished` bool `(R,)`
    marks stop tokens among them. `is_used` bool `(R, V)` marks tokens read or written; it is
    `(R, 0)` without a penalty. `lengths` int32 `(R,)` counts the tokens since the last update of
    memory, `position` all tokens written. `recent` is the engine's state beside memory.
    """

    pending: Any
    is_finished: Any
    is_used: Any
    lengths: Any
    position: Any
    recent: Any


class TokenLoop:
    """Sampling loop: decodes a token, samples the next, repeats.

    The number of tokens is an argument, so all lengths share one program, and the loop stops when
    all rows have ended. Without a `sampler` each call gives the settings; `capacity` is `C`, the
    tokens that the engine keeps beside memory.
    """

    def __init__(
        self, engine: InferenceEngine, sampler: Sampler | None, rules: TokenRules, capacity: int
    ) -> None:
        self._engine = engine
        self._capacity = capacity
        self._sampler = sampler
        self._rules = rules
        self._run = tf.function(self._loop, autograph=False, jit_compile=engine.plan.compile_step)

    def __call__(
        self,
        memory: Any,
        constants: Any,
        state: DecodingState,
        seeds: Any,
        settings: tuple[Any, ...],
        max_tokens: int,
    ) -> tuple[tf.Tensor, DecodingState]:
        """Writes int32 tokens `(C, R)`; only the first `max_tokens` are valid.

        `settings` are the arguments of `RandomSampler`, each `(R,)`; empty with a sampler.
        """
        seeds, *settings = (tf.constant(each) for each in (seeds, *settings))
        return self._run(memory, constants, state, seeds, settings, tf.constant(max_tokens))

    def _loop(self, memory, constants, state, seeds, settings, max_tokens):
        num_rows = state.pending.shape[0]
        written = tf.fill([self._capacity, num_rows], NOTHING)

        def goes_on(index, state, _):
            return (index < max_tokens) & tf.logical_not(tf.reduce_all(state.is_finished))

        def body(index, state, written):
            column, state = self._step(memory, constants, state, seeds, settings)
            return index + 1, state, ops.slice_update(written, [index, 0], column[None])

        _, state, written = tf.while_loop(goes_on, body, (tf.constant(0), state, written))
        return written, state

    def _step(self, memory, constants, state, seeds, settings):
        is_active = tf.logical_not(state.is_finished)
        logits, recent = self._engine.step(
            state.pending, is_active, memory, state.recent, constants
        )
        logits = self._rules.apply(logits, state.is_used)
        seeds = drawing_seeds(seeds, state.position)
        sampler = RandomSampler(*settings) if self._sampler is None else self._sampler
        token_ids = tf.ensure_shape(sampler(logits, seeds), [state.pending.shape[0]])
        pending = tf.where(is_active, token_ids, state.pending)
        state = DecodingState(
            pending=pending,
            is_finished=state.is_finished | self._rules.is_stop(pending),
            is_used=self._rules.use(state.is_used, pending),
            lengths=state.lengths + tf.cast(is_active, tf.int32),
            position=state.position + 1,
            recent=recent,
        )
        return tf.where(is_active, pending, NOTHING), state


class BeamSearch:
    """Beam search with several beams per row; memory follows the beams.

    All beams of a row share the memory before the search, which is read once for all of them;
    only the states written since then are reordered.
    """

    def __init__(self, engine: InferenceEngine, sampler: BeamSampler, rules: TokenRules) -> None:
        self._engine = engine
        self._sampler = sampler
        self._rules = rules
        self._run = tf.function(self._search, autograph=False, jit_compile=engine.plan.compile_step)

    def __call__(
        self, memory: Any, constants: Any, pending: np.ndarray, is_used: Any, max_tokens: int
    ) -> tuple[np.ndarray, np.ndarray, Any, np.ndarray]:
        """Searches from the pending tokens `(B,)`.

        Returns the tokens of all beams, int32 `(B, W, S)`, best first; their scores,
        float32 `(B, W)`; and for `finish` the recent states of the best beams with
        their lengths `(B,)`.
        """
        width = self._sampler.num_beams
        recent = self._engine.begin(memory, width, max_tokens)
        tokens, scores, best, lengths = self._run(
            memory,
            constants,
            recent,
            tf.repeat(tf.constant(pending, tf.int32), width),
            tf.repeat(is_used, width, axis=0),
            tf.fill([max_tokens], NOTHING),
        )
        num_rows = len(pending)
        lengths = lengths.numpy().reshape(num_rows, width)[:, 0]
        return tokens.numpy().reshape(num_rows, width, -1), scores.numpy(), best, lengths

    def _search(self, memory, constants, recent, pending, is_used, empty):
        num_rows, max_tokens = pending.shape[0], empty.shape[0]
        width = self._sampler.num_beams
        tokens = tf.tile(empty[None], [num_rows, 1])  # [R, S]
        is_finished = tf.zeros([num_rows], tf.bool)
        scores = self._sampler.initial_scores(num_rows // width)
        lengths = tf.zeros([num_rows], tf.int32)

        def goes_on(index, pending, is_finished, *_):
            return (index < max_tokens) & tf.logical_not(tf.reduce_all(is_finished))

        def body(index, pending, is_finished, is_used, scores, lengths, tokens, recent):
            log_probs, recent = self._engine.step(
                pending, tf.logical_not(is_finished), memory, recent, constants
            )
            lengths += tf.cast(tf.logical_not(is_finished), tf.int32)
            scores, parents, next_ids = self._best(log_probs, is_used, scores, is_finished)
            recent = self._engine.select(recent, parents)
            pending, is_finished, is_used, lengths, tokens = (
                tf.gather(each, parents)
                for each in (pending, is_finished, is_used, lengths, tokens)
            )
            pending = tf.where(is_finished, pending, next_ids)
            written = tf.where(is_finished, NOTHING, next_ids)
            tokens = ops.slice_update(tokens, [0, index], written[:, None])
            is_finished |= self._rules.is_stop(pending)
            is_used = self._rules.use(is_used, pending)
            return index + 1, pending, is_finished, is_used, scores, lengths, tokens, recent

        state = (tf.constant(0), pending, is_finished, is_used, scores, lengths, tokens, recent)
        *_, scores, lengths, tokens, recent = tf.while_loop(goes_on, body, state)
        best = self._engine.select(recent, tf.range(0, num_rows, width))
        return tokens, scores, best, lengths

    def _best(self, log_probs, is_used, scores, is_finished):
        width = self._sampler.num_beams
        log_probs = self._rules.apply(log_probs, is_used)
        scores, parents, next_ids = self._sampler(
            tf.reshape(log_probs, [-1, width, self._rules.vocabulary_size]),
            scores,
            tf.reshape(is_finished, [-1, width]),
        )
        parents += tf.range(parents.shape[0])[:, None] * width  # indices among all rows
        return scores, tf.reshape(parents, [-1]), tf.reshape(next_ids, [-1])
