"""The sampling loop, and the rules that choose and end its tokens.

Shape letters used in this module: R rows, C capacity, V vocabulary, K token ids.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from txl_tf.stateless_random import mixed

Sampler = Callable[[Any, Any], Any]
"""A function of logits `(R, V)` and seeds `(R, 2)` that returns tokens `(R,)`."""

NOTHING = -1
"""Marks the end of a row in the results."""


class TokenRules(NamedTuple):
    """Choice of tokens, and the tokens that end a text, for all rows or for each.

    Ids are a sequence, or a tensor `(R, K)` in which -1 stands for no id.
    """

    sampler: Any
    penalty: Any = None
    stop_token_ids: Any = ()
    excluded_token_ids: Any = ()

    def apply(self, logits: Any, is_used: Any) -> Any:
        """Returns the scores `(R, V)` to choose by; `is_used` is `(R, 0)` without penalty."""
        if self.penalty is not None:
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


def is_id(token_ids: Any, vocabulary_size: int) -> Any:
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
    """State that changes from token to token."""

    pending: Any
    """int32 `(R,)`, the newest tokens, which are not read yet."""
    is_finished: Any
    """bool `(R,)`, true for rows that ended."""
    is_used: Any
    """bool `(R, V)`, true for tokens that were read or written; `(R, 0)` without a penalty."""
    lengths: Any
    """int32 `(R,)`, the tokens read of each row."""
    position: Any
    """The tokens written, a number or `(R,)`."""
    recent: Any
    """State of the step."""


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

    `step` maps tokens `(R,)`, the rows that have not ended, bool `(R,)`, and `recent` to
    log-probabilities `(R, V)` and the next `recent`. `max_tokens`, a number or `(R,)`, is at most
    `capacity`; the loop stops earlier when all rows have ended. Returns int32 tokens `(C, R)`,
    `NOTHING` where a row had ended; with nats their float32 `(C, R)` too.
    """

    def is_active(index: Any, state: DecodingState) -> Any:
        return ops.logical_and(ops.logical_not(state.is_finished), index < max_tokens)

    def continues(index: Any, state: DecodingState, _: Any) -> Any:
        return ops.any(is_active(index, state))

    def body(index: Any, state: DecodingState, written: list[Any]) -> Any:
        is_written = is_active(index, state)
        log_probs, recent = step(state.pending, is_written, state.recent)
        scores = rules.apply(log_probs, state.is_used)
        token_ids = rules.sampler(scores, drawing_seeds(seeds, state.position))
        pending = ops.where(is_written, token_ids, state.pending)
        is_pending = is_id(pending, log_probs.shape[-1])
        new = [ops.where(is_written, pending, NOTHING)]
        if with_nats:
            nats = -ops.sum(ops.where(is_pending, log_probs, 0.0), axis=-1)
            new.append(ops.where(is_written, nats, 0.0))
        state = DecodingState(
            pending=pending,
            is_finished=ops.logical_or(state.is_finished, rules.is_stop(pending)),
            is_used=with_used(state.is_used, is_pending),
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
    _, state, written = ops.while_loop(continues, body, (first, state, written))
    return written, state


def with_used(is_used: Any, is_pending: Any) -> Any:
    """Marks further tokens as used, unless there is no penalty."""
    return is_used if is_used.shape[1] == 0 else ops.logical_or(is_used, is_pending)
