"""Decoding: prompts, the sampling loop, beam search, and the rules that end a text.

Shape letters used in this module:
  B rows, W beams of each, R = B * W rows, P prompt length, T tokens of a piece,
  C capacity, V vocabulary, S tokens to write, K token ids.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from keras import ops

from txl_tf.inference.engine import InferenceEngine
from txl_tf.layers.adaptive_softmax import check_token_ids
from txl_tf.samplers import BeamSampler, RepetitionPenalty
from txl_tf.stateless_random import mixed

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
        # A power of 2 below a whole segment: every length costs one more program to compile.
        length = min(self._segment_length, 1 << (longest - 1).bit_length())
        token_ids = [np.pad(row[:length], (0, max(0, length - len(row)))) for row in rows]
        lengths = tf.constant(common_length([min(len(row), length) for row in rows]), tf.int32)
        token_ids = tf.constant(np.stack(token_ids), tf.int32)
        read = self._read(token_ids, memory, lengths=lengths, constants=self._constants(length))
        return *read, length


def common_length(lengths: Any) -> np.ndarray:
    """Returns a scalar if all lengths are equal, which is faster."""
    lengths = np.asarray(lengths, np.int32)
    return lengths[0] if (lengths == lengths[0]).all() else lengths


class TokenRules(NamedTuple):
    """How tokens are chosen and which of them end a text, for all rows or for each.

    Ids are a sequence, or a tensor `(R, K)` in which -1 stands for none.
    """

    sampler: Any
    penalty: RepetitionPenalty = RepetitionPenalty(1.0)
    stop_token_ids: Any = ()
    excluded_token_ids: Any = ()

    def apply(self, logits: tf.Tensor, is_used: tf.Tensor) -> tf.Tensor:
        """Returns the scores `(R, V)` to choose by; `is_used` is `(R, 0)` without penalty."""
        logits = self.penalty(logits, is_used)
        excluded = _id_rows(self.excluded_token_ids)
        if excluded.shape[1] == 0:
            return logits
        token_ids = tf.range(logits.shape[-1])[:, None]
        is_excluded = tf.reduce_any(token_ids == excluded[:, None], axis=2)
        return tf.where(is_excluded, -np.inf, logits)

    def use(self, is_used: tf.Tensor, token_ids: tf.Tensor) -> tf.Tensor:
        """Returns the next `is_used`, with tokens `(R,)` marked as used."""
        if is_used.shape[1] == 0:
            return is_used
        return is_used | tf.one_hot(token_ids, is_used.shape[1], True, False)

    def is_stop(self, token_ids: tf.Tensor) -> tf.Tensor:
        """Marks the tokens that end their texts, bool `(R,)`."""
        return tf.reduce_any(token_ids[:, None] == _id_rows(self.stop_token_ids), axis=1)


def _id_rows(token_ids: Any) -> tf.Tensor:
    if isinstance(token_ids, tf.Tensor):
        return token_ids
    return tf.constant([list(token_ids)], tf.int32)


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
    marks rows that ended. `is_used` bool `(R, V)` marks tokens read or written; it is
    `(R, 0)` without a penalty. `lengths` int32 `(R,)` counts the tokens read of each row,
    `position` those written, as a number or `(R,)`. `recent` belongs to the step.
    """

    pending: Any
    is_finished: Any
    is_used: Any
    lengths: Any
    position: Any
    recent: Any


def write_tokens(
    step: Callable[[tf.Tensor, tf.Tensor, Any], tuple[tf.Tensor, Any]],
    rules: TokenRules,
    seeds: tf.Tensor,
    state: DecodingState,
    max_tokens: tf.Tensor | int,
    capacity: tf.Tensor | int,
    *,
    with_nats: bool = False,
) -> tuple[list[tf.Tensor], DecodingState]:
    """Samples tokens: reads the newest of each row, samples the next, and repeats.

    `step` maps tokens `(R,)`, the rows at work, bool `(R,)`, and `recent` to log-probabilities
    `(R, V)` and the next `recent`. `max_tokens`, a number or `(R,)`, is at most `capacity`; the
    loop stops earlier when all rows have ended. Returns int32 tokens `(C, R)`, `NOTHING` where a
    row had ended and invalid after the last step; with nats their float32 `(C, R)` too.
    """
    shape = state.pending.shape

    def is_active(index: tf.Tensor, state: DecodingState) -> tf.Tensor:
        return tf.logical_not(state.is_finished) & (index < max_tokens)

    def goes_on(index: tf.Tensor, state: DecodingState, _: Any) -> tf.Tensor:
        return tf.reduce_any(is_active(index, state))

    def body(index: tf.Tensor, state: DecodingState, written: list[tf.TensorArray]) -> Any:
        is_written = is_active(index, state)
        log_probs, recent = step(state.pending, is_written, state.recent)
        scores = rules.apply(log_probs, state.is_used)
        token_ids = rules.sampler(scores, drawing_seeds(seeds, state.position))
        pending = tf.where(is_written, tf.ensure_shape(token_ids, shape), state.pending)
        new = [tf.where(is_written, pending, NOTHING)]
        if with_nats:
            nats = -tf.gather(log_probs, pending, batch_dims=1)
            new.append(tf.where(is_written, nats, 0.0))
        state = DecodingState(
            pending=pending,
            is_finished=state.is_finished | rules.is_stop(pending),
            is_used=rules.use(state.is_used, pending),
            lengths=state.lengths + tf.cast(is_written, tf.int32),
            position=state.position + 1,
            recent=recent,
        )
        written = [array.write(index, each) for array, each in zip(written, new, strict=True)]
        return index + 1, state, written

    dtypes = [tf.int32, tf.float32] if with_nats else [tf.int32]
    written = [tf.TensorArray(dtype, size=capacity, element_shape=shape) for dtype in dtypes]
    _, state, written = tf.while_loop(goes_on, body, (tf.constant(0), state, written))
    return [array.stack() for array in written], state


class BeamSearch:
    """Beam search with several beams per row; memory follows the beams.

    All beams of a row share the memory before the search, which is read once for all of them;
    only the states written since then are reordered.
    """

    def __init__(self, engine: InferenceEngine, rules: TokenRules) -> None:
        self._engine = engine
        self._sampler: BeamSampler = rules.sampler
        self._rules = rules
        self._run = tf.function(self._search, autograph=False, jit_compile=engine.plan.compile_step)

    def __call__(
        self, memory: Any, constants: Any, pending: np.ndarray, is_used: Any, max_tokens: int
    ) -> tuple[np.ndarray, Any, np.ndarray]:
        """Searches from the pending tokens `(B,)`.

        Returns the tokens of all beams, int32 `(B, W, S)`, best first; and for `finish` the
        recent states of the best beams with their lengths `(B,)`.
        """
        width = self._sampler.num_beams
        recent = self._engine.begin(memory, width, max_tokens)
        tokens, best, lengths = self._run(
            memory,
            constants,
            recent,
            tf.repeat(tf.constant(pending, tf.int32), width),
            tf.repeat(is_used, width, axis=0),
            tf.fill([max_tokens], NOTHING),
        )
        return tokens.numpy(), best, lengths.numpy()

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
            log_probs = self._rules.apply(log_probs, is_used)
            scores, parents, next_ids = self._sampler(
                tf.reshape(log_probs, [-1, width, log_probs.shape[-1]]),
                scores,
                tf.reshape(is_finished, [-1, width]),
            )
            parents += tf.range(parents.shape[0])[:, None] * width  # indices among all rows
            parents, next_ids = tf.reshape(parents, [-1]), tf.reshape(next_ids, [-1])
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
        *_, lengths, tokens, recent = tf.while_loop(goes_on, body, state)
        # The best beam of each row is its first.
        best = self._engine.select(recent, tf.range(0, num_rows, width))
        return tf.reshape(tokens, [-1, width, max_tokens]), best, lengths[::width]
