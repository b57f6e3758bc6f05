"""Writes token after token in one compiled program.

Shape letters used in this module: R rows, C capacity, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras import ops

from txl_tf import functional
from txl_tf.generation.writing_rules import WritingRules
from txl_tf.generation.writing_state import WritingState

Sampler = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
"""A function of logits `(R, V)` and seeds `(R, 2)` that returns tokens `(R,)`."""

NOTHING = -1
"""Stands in the results where a row has ended."""


class TokenLoop:
    """Reads a token, samples the next one, and so on.

    The number of tokens is an argument, so one program serves them all, and
    it stops early when all rows have ended.

    Args:
        decoder: `IncrementalDecoder` or `SegmentDecoder`.
        sampler: `Sampler`.
        rules: `WritingRules`.
    """

    def __init__(self, decoder: Any, sampler: Sampler, rules: WritingRules) -> None:
        self._decoder = decoder
        self._sampler = sampler
        self._rules = rules
        self._run = tf.function(self._loop, autograph=False, jit_compile=decoder.jit_compile)

    def __call__(
        self, memory: Any, constants: Any, state: WritingState, seed: int, num_tokens: int
    ) -> tuple[tf.Tensor, WritingState]:
        """Writes tokens.

        Args:
            memory: what the decoder's `begin` was given.
            constants: from the decoder.
            state: `WritingState`.
            seed: int.
            num_tokens: int, at most what there is room for.

        Returns:
            Tuple of int32 tokens `(C, R)`, of which the first `num_tokens`
            count, and the next state.
        """
        return self._run(
            memory, constants, state, tf.constant(seed, tf.int32), tf.constant(num_tokens)
        )

    def _loop(self, memory, constants, state, seed, num_tokens):
        num_rows = state.pending.shape[0]
        written = tf.fill([self._decoder.capacity, num_rows], NOTHING)

        def goes_on(index, state, _):
            return (index < num_tokens) & tf.logical_not(tf.reduce_all(state.is_finished))

        def body(index, state, written):
            column, state = self._step(memory, constants, state, seed)
            return index + 1, state, ops.slice_update(written, [index, 0], column[None])

        _, state, written = tf.while_loop(goes_on, body, (tf.constant(0), state, written))
        return written, state

    def _step(self, memory, constants, state, seed):
        is_active = tf.logical_not(state.is_finished)
        logits, recent = self._decoder.step(
            state.pending, is_active, memory, state.recent, constants
        )
        logits = self._rules.penalize(logits, state.is_used)
        rows = tf.range(state.pending.shape[0])
        seeds = functional.row_seeds(tf.stack([seed, state.position]), rows)
        token_ids = tf.ensure_shape(self._sampler(logits, seeds), [state.pending.shape[0]])
        pending = tf.where(is_active, token_ids, state.pending)
        state = WritingState(
            pending=pending,
            is_finished=state.is_finished | self._rules.is_stop(pending),
            is_used=self._rules.use(state.is_used, pending),
            lengths=state.lengths + tf.cast(is_active, tf.int32),
            position=state.position + 1,
            recent=recent,
        )
        return tf.where(is_active, pending, NOTHING), state
