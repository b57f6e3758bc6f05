"""Decoding: prompts, the sampling loop, beam search, and the rules that end a text.

Shape letters used in this module:
  B rows, W beams of each, R = B * W rows, P prompt length, T tokens of a piece,
  C capacity, V vocabulary, S tokens to write, K token ids.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from txl_tf.inference.engine import InferenceEngine
from txl_tf.layers.adaptive_softmax import check_token_ids
from txl_tf.layers.compiled_parts import compiled
from txl_tf.samplers import BeamSampler, RepetitionPenalty
from txl_tf.stateless_random import mixed

Sampler = Callable[[Any, Any], Any]
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
        self._read = compiled(engine.read, engine.model)
        # Only the newest length: the keys of all distances take memory.
        self._constants = functools.lru_cache(maxsize=1)(engine.constants)

    def __call__(self, rows: list[np.ndarray], memory: Any) -> Any:
        """Reads `B` int vectors, some of them possibly empty; returns the next memory."""
        if self._engine.keeps_states and len({len(row) for row in rows}) > 1:
            alone = [
                self([row], keras.tree.map_structure(lambda each, b=b: each[b : b + 1], memory))
                for b, row in enumerate(rows)
            ]
            return joined_rows(alone)
        while any(len(row) for row in rows):
            _, memory, length = self.read_piece(rows, memory)
            rows = [row[length:] for row in rows]
        return memory

    def read_piece(self, rows: list[np.ndarray], memory: Any) -> tuple[Any, Any, int]:
        """Reads the next segment of `B` int vectors, or less where they end.

        Where the engine keeps states, they must have equal lengths. Returns the hidden states
        `(B, T, D)`, the next memory and `T`.
        """
        longest = max(len(row) for row in rows)
        if self._engine.keeps_states:
            length = min(longest, self._segment_length)
            token_ids = np.stack([row[:length] for row in rows])
            return *self._read(ops.convert_to_tensor(token_ids, "int32"), memory), length
        # A power of 2 below a whole segment: every length costs one more program to compile.
        length = min(self._segment_length, 1 << (longest - 1).bit_length())
        token_ids = [np.pad(row[:length], (0, max(0, length - len(row)))) for row in rows]
        lengths = common_length([min(len(row), length) for row in rows])
        ids = ops.convert_to_tensor(np.stack(token_ids), "int32")
        read = self._read(ids, memory, lengths=lengths, constants=self._constants(length))
        return *read, length


def joined_rows(memories: list[Any]) -> Any:
    """Returns the rows of several memories as one memory."""
    return keras.tree.map_structure(lambda *each: ops.concatenate(each, axis=0), *memories)


def common_length(lengths: Any) -> Any:
    """Returns lengths as a tensor, which is a scalar if all are equal: that is faster."""
    lengths = np.asarray(lengths, np.int32)
    is_common = (lengths == lengths[0]).all()
    return ops.convert_to_tensor(lengths[0] if is_common else lengths, "int32")


class TokenRules(NamedTuple):
    """How tokens are chosen and which of them end a text, for all rows or for each.

    Ids are a sequence, or a tensor `(R, K)` in which -1 stands for none.
    """

    sampler: Any
    penalty: RepetitionPenalty = RepetitionPenalty(1.0)
    stop_token_ids: Any = ()
    excluded_token_ids: Any = ()

    def apply(self, logits: Any, is_used: Any) -> Any:
        """Returns the scores `(R, V)` to choose by; `is_used` is `(R, 0)` without penalty."""
        logits = self.penalty(logits, is_used)
        excluded = _id_rows(self.excluded_token_ids)
        if excluded.shape[1] == 0:
            return logits
        token_ids = ops.arange(logits.shape[-1], dtype="int32")[:, None]
        is_excluded = ops.any(ops.equal(token_ids, excluded[:, None]), axis=2)
        return ops.where(is_excluded, -float("inf"), logits)

    def is_stop(self, token_ids: Any) -> Any:
        """Marks the tokens that end their texts, bool `(R,)`."""
        return ops.any(ops.equal(token_ids[:, None], _id_rows(self.stop_token_ids)), axis=1)


def _id_rows(token_ids: Any) -> Any:
    if ops.is_tensor(token_ids):
        return token_ids
    return ops.convert_to_tensor(np.array([list(token_ids)], np.int32))


def _is_id(token_ids: Any, vocabulary_size: int) -> Any:
    """Marks tokens `(R,)` among all ids, bool `(R, V)`."""
    return ops.equal(token_ids[:, None], ops.arange(vocabulary_size, dtype="int32"))


def drawing_seeds(seeds: Any, position: Any) -> Any:
    """Returns the seeds of one token, int32 `(R, 2)`, which do not depend on the row's index.

    `position` is a number, or `(R,)`.
    """
    first = mixed(ops.cast(position, "uint32"))
    of_zero = ops.cast(ops.stack([first, mixed(first)], axis=-1), "int32")  # [2] or [R, 2]
    # Not a stack with zeros: TensorFlow folds it to one row if the seed is a constant.
    return of_zero + seeds[:, None] * ops.convert_to_tensor([[1, 0]], "int32")


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
    step: Callable[[Any, Any, Any], tuple[Any, Any]],
    rules: TokenRules,
    seeds: Any,
    state: DecodingState,
    max_tokens: Any,
    capacity: Any,
    *,
    with_nats: bool = False,
) -> tuple[list[Any], DecodingState]:
    """Samples tokens: reads the newest of each row, samples the next, and repeats.

    `step` maps tokens `(R,)`, the rows at work, bool `(R,)`, and `recent` to log-probabilities
    `(R, V)` and the next `recent`. `max_tokens`, a number or `(R,)`, is at most `capacity`; the
    loop stops earlier when all rows have ended. Returns int32 tokens `(C, R)`, `NOTHING` where a
    row had ended; with nats their float32 `(C, R)` too.
    """

    def is_active(index: Any, state: DecodingState) -> Any:
        return ops.logical_and(ops.logical_not(state.is_finished), index < max_tokens)

    def goes_on(index: Any, state: DecodingState, _: Any) -> Any:
        return ops.any(is_active(index, state))

    def body(index: Any, state: DecodingState, written: list[Any]) -> Any:
        is_written = is_active(index, state)
        log_probs, recent = step(state.pending, is_written, state.recent)
        scores = rules.apply(log_probs, state.is_used)
        token_ids = rules.sampler(scores, drawing_seeds(seeds, state.position))
        pending = ops.where(is_written, token_ids, state.pending)
        is_pending = _is_id(pending, log_probs.shape[-1])
        new = [ops.where(is_written, pending, NOTHING)]
        if with_nats:
            nats = -ops.sum(ops.where(is_pending, log_probs, 0.0), axis=-1)
            new.append(ops.where(is_written, nats, 0.0))
        state = DecodingState(
            pending=pending,
            is_finished=ops.logical_or(state.is_finished, rules.is_stop(pending)),
            is_used=_with_used(state.is_used, is_pending),
            lengths=state.lengths + ops.cast(is_written, "int32"),
            position=state.position + 1,
            recent=recent,
        )
        row = ops.reshape(index, [1, 1])
        pairs = zip(written, new, strict=True)
        return index + 1, state, [ops.scatter_update(all_, row, one[None]) for all_, one in pairs]

    shape = [capacity, ops.shape(state.pending)[0]]
    written = [ops.full(shape, NOTHING, "int32")]
    if with_nats:
        written.append(ops.full(shape, 0.0, "float32"))
    first = ops.convert_to_tensor(0, "int32")
    _, state, written = ops.while_loop(goes_on, body, (first, state, written))
    return written, state


def _with_used(is_used: Any, is_pending: Any) -> Any:
    return is_used if is_used.shape[1] == 0 else ops.logical_or(is_used, is_pending)


class BeamSearch:
    """Beam search with several beams per row; memory follows the beams.

    All beams of a row share the memory before the search, which is read once for all of them;
    only the states written since then are reordered.
    """

    def __init__(self, engine: InferenceEngine, rules: TokenRules) -> None:
        self._engine = engine
        self._sampler: BeamSampler = rules.sampler
        self._rules = rules
        self._run = compiled(self._search, engine.model, engine.plan.compile_step)

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
            ops.repeat(ops.convert_to_tensor(pending, "int32"), width),
            ops.repeat(is_used, width, axis=0),
            ops.full([max_tokens], NOTHING, "int32"),
        )
        return np.asarray(tokens), best, np.asarray(lengths)

    def _search(self, memory, constants, recent, pending, is_used, empty):
        num_rows, max_tokens = pending.shape[0], empty.shape[0]
        width = self._sampler.num_beams
        tokens = ops.tile(empty[None], [num_rows, 1])  # [R, S]
        is_finished = ops.zeros([num_rows], "bool")
        scores = self._sampler.initial_scores(num_rows // width)
        lengths = ops.zeros([num_rows], "int32")

        def goes_on(index, pending, is_finished, *_):
            return ops.logical_and(index < max_tokens, ops.logical_not(ops.all(is_finished)))

        def body(index, pending, is_finished, is_used, scores, lengths, tokens, recent):
            is_active = ops.logical_not(is_finished)
            log_probs, recent = self._engine.step(pending, is_active, memory, recent, constants)
            lengths = lengths + ops.cast(is_active, "int32")
            log_probs = self._rules.apply(log_probs, is_used)
            scores, parents, next_ids = self._sampler(
                ops.reshape(log_probs, [-1, width, log_probs.shape[-1]]),
                scores,
                ops.reshape(is_finished, [-1, width]),
            )
            # Indices among all rows.
            parents = parents + ops.arange(num_rows // width, dtype="int32")[:, None] * width
            parents, next_ids = ops.reshape(parents, [-1]), ops.reshape(next_ids, [-1])
            recent = self._engine.select(recent, parents)
            pending, is_finished, is_used, lengths, tokens = (
                ops.take(each, parents, axis=0)
                for each in (pending, is_finished, is_used, lengths, tokens)
            )
            pending = ops.where(is_finished, pending, next_ids)
            written = ops.where(is_finished, NOTHING, next_ids)
            tokens = ops.slice_update(tokens, [0, index], written[:, None])
            is_finished = ops.logical_or(is_finished, self._rules.is_stop(pending))
            is_used = _with_used(is_used, _is_id(pending, log_probs.shape[-1]))
            return index + 1, pending, is_finished, is_used, scores, lengths, tokens, recent

        first = ops.convert_to_tensor(0, "int32")
        state = (first, pending, is_finished, is_used, scores, lengths, tokens, recent)
        *_, lengths, tokens, recent = ops.while_loop(goes_on, body, state)
        # The best beam of each row is its first.
        best = self._engine.select(recent, ops.arange(0, num_rows, width, dtype="int32"))
        return ops.reshape(tokens, [-1, width, max_tokens]), best, lengths[::width]
