"""The loop that writes tokens, and its state.

Shape letters used in this module: R rows, C capacity, V vocabulary.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

from keras import ops

from txl_tf.generation.token_rules import TokenRules
from txl_tf.samplers import BeamSampler
from txl_tf.stateless_random import mixed

TOKENS_PER_CHECK = 16
"""Number of tokens that are written between two searches of a text for its end."""

NOTHING = -1
"""Marks the end of a row in the results."""


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

    `pending`, int32 `(R,)`, holds the newest token of each row, which the model reads next.
    `step_state` is the state of the model between two steps.
    `output_ids`, int32 `(C, R)`, holds the tokens that were written, and `NOTHING` after a row's
    end. Its first `index` places are filled.
    `nats`, float32 `(C, R)`, holds the nats of these tokens, or is `()` if nats are not needed.
    `uses`, int32 `(R, V)`, is 0 for a token that was neither read nor written. A token that was
    read or written has 1, and 1 more for each time that it was written. Without penalties the
    shape is `(R, 0)`.
    `totals`, float32 `(R,)`, holds the totals of a `BeamSampler`, or is `()` without beams.
    `is_finished`, bool `(R,)`, marks the rows that ended.
    `lengths`, int32 `(R,)`, counts the tokens of each row that the loop read.
    `position`, a number or `(R,)`, counts the tokens that were drawn for the whole text.
    """

    pending: Any
    step_state: Any
    output_ids: Any
    nats: Any
    uses: Any
    totals: Any
    is_finished: Any
    lengths: Any
    index: Any
    position: Any

    @classmethod
    def begin(
        cls,
        pending: Any,
        step_state: Any,
        capacity: Any,
        *,
        uses: Any = None,
        totals: Any = (),
        position: Any = 0,
        with_nats: bool = False,
    ) -> Self:
        """Returns the state before the first token."""
        num_rows = ops.shape(pending)[0]
        shape = [capacity, num_rows]
        return cls(
            pending=pending,
            step_state=step_state,
            output_ids=ops.full(shape, NOTHING, "int32"),
            nats=ops.full(shape, 0.0, "float32") if with_nats else (),
            uses=ops.zeros([num_rows, 0], "int32") if uses is None else uses,
            totals=totals,
            is_finished=ops.zeros([num_rows], "bool"),
            lengths=ops.zeros([num_rows], "int32"),
            index=ops.convert_to_tensor(0, "int32"),
            position=ops.convert_to_tensor(position, "int32"),
        )

    def reordered(self, parents: Any, select: Callable[[Any, Any], Any]) -> Self:
        """Returns the state with its rows in the order of `parents`, int32 `(R,)`.

        It is for beams, whose state has no `nats`.
        """
        names = ("pending", "uses", "is_finished", "lengths")
        return self._replace(
            step_state=select(self.step_state, parents),
            output_ids=ops.take(self.output_ids, parents, axis=1),
            **{name: ops.take(getattr(self, name), parents, axis=0) for name in names},
        )


def write_tokens(
    step: Callable[[Any, Any, Any], tuple[Any, Any]],
    rules: TokenRules,
    seeds: Any,
    state: DecodingState,
    max_tokens: Any,
    select: Callable[[Any, Any], Any] | None = None,
) -> DecodingState:
    """Writes tokens: reads the newest of each row, chooses the next, and repeats.

    `step` maps tokens `(R,)`, the rows that have not ended, bool `(R,)`, and a step state to logits
    `(R, V)` and the next step state. `max_tokens`, a number or `(R,)`, is at most the rest of the
    capacity; the loop stops earlier when all rows have ended. A `BeamSampler` also needs `select`,
    which reorders the rows of a step state.
    """

    def is_active(count: Any, state: DecodingState) -> Any:
        return ops.logical_and(ops.logical_not(state.is_finished), count < max_tokens)

    def body(count: Any, state: DecodingState) -> tuple[Any, DecodingState]:
        # 1. The newest token of each row is read.
        is_written = is_active(count, state)
        logits, step_state = step(state.pending, is_written, state.step_state)
        lengths = state.lengths + ops.cast(is_written, "int32")
        state = state._replace(step_state=step_state, lengths=lengths)
        # 2. The next token is chosen; beams may continue other rows.
        scores = rules.scores(logits, state.uses)
        if isinstance(rules.sampler, BeamSampler):
            is_finished = ops.logical_not(is_written)
            parents, token_ids, totals = rules.sampler(scores, state.totals, is_finished)
            state = state.reordered(parents, select)._replace(totals=totals)  # type: ignore[arg-type]
            is_written, logits = (ops.take(each, parents, axis=0) for each in (is_written, logits))
        else:
            token_ids = ops.cast(
                rules.sampler(scores, drawing_seeds(seeds, state.position)), "int32"
            )
        # 3. The token is noted.
        return count + 1, _with_tokens(rules, state, logits, token_ids, is_written)

    first = ops.convert_to_tensor(0, "int32")
    return ops.while_loop(
        lambda count, state: ops.any(is_active(count, state)), body, (first, state)
    )[1]


def _with_tokens(
    rules: TokenRules, state: DecodingState, logits: Any, token_ids: Any, is_written: Any
) -> DecodingState:
    """Returns the state after one token of each row that has not ended."""
    vocabulary = ops.arange(logits.shape[-1], dtype="int32")
    is_token = ops.equal(token_ids[:, None], vocabulary)  # [R, V]
    place = ops.reshape(state.index, [1, 1])
    written_ids = ops.where(is_written, token_ids, NOTHING)
    nats, uses = state.nats, state.uses
    if not isinstance(nats, tuple):
        log_probs = ops.log_softmax(ops.cast(logits, "float32"), axis=-1)
        new = -ops.sum(ops.where(is_token, log_probs, 0.0), axis=-1)
        nats = ops.scatter_update(nats, place, ops.where(is_written, new, 0.0)[None])
    if uses.shape[1] > 0:
        is_new = ops.logical_and(is_token, is_written[:, None])
        uses = ops.where(is_new, ops.maximum(uses, 1) + 1, uses)
    is_stop = ops.logical_and(rules.is_stop(token_ids), is_written)
    return state._replace(
        pending=ops.where(is_written, token_ids, state.pending),
        output_ids=ops.scatter_update(state.output_ids, place, written_ids[None]),
        nats=nats,
        uses=uses,
        is_finished=ops.logical_or(state.is_finished, is_stop),
        index=state.index + 1,
        position=state.position + 1,
    )
