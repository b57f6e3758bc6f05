"""Searches the most probable continuation as a whole.

Shape letters used in this module: B rows, W beams of each, R = B * W rows,
V vocabulary, S tokens to write.
"""

from typing import Any

import numpy as np
import tensorflow as tf
from keras import ops

from txl_tf.generation.token_loop import NOTHING
from txl_tf.generation.writing_rules import WritingRules
from txl_tf.samplers.beam_sampler import BeamSampler


class BeamSearch:
    """Writes with several beams per row, whose memory goes with them.

    Memory before the search is the same for all beams of a row, and is read
    once for them all; only what was written since is put in the beams' order.

    Args:
        decoder: `IncrementalDecoder` or `SegmentDecoder`.
        sampler: `BeamSampler`.
        rules: `WritingRules`.
    """

    def __init__(self, decoder: Any, sampler: BeamSampler, rules: WritingRules) -> None:
        self._decoder = decoder
        self._sampler = sampler
        self._rules = rules
        self._run = tf.function(self._search, autograph=False, jit_compile=decoder.jit_compile)

    def __call__(
        self, memory: Any, constants: Any, pending: np.ndarray, is_used: Any, num_tokens: int
    ) -> tuple[np.ndarray, np.ndarray, Any]:
        """Searches.

        Args:
            memory: memory of `B` rows.
            constants: from the decoder, for `R` rows.
            pending: int32 array `(B,)`. The tokens to begin with.
            is_used: bool tensor `(B, V)`, or `(B, 0)` without penalty.
            num_tokens: int. `S`.

        Returns:
            Tuple of the tokens of all beams, int32 `(B, W, S)`, best first;
            their scores, float32 `(B, W)`; and the memory with the best ones,
            its last token not included.
        """
        width = self._sampler.num_beams
        recent = self._decoder.begin(memory, len(pending) * width, num_tokens)
        tokens, scores, best, lengths = self._run(
            memory,
            constants,
            recent,
            tf.repeat(tf.constant(pending, tf.int32), width),
            tf.repeat(is_used, width, axis=0),
            tf.fill([num_tokens], NOTHING),
        )
        num_rows = len(pending)
        lengths = lengths.numpy().reshape(num_rows, width)[:, 0]
        memory = self._decoder.finish(memory, best, lengths)
        return tokens.numpy().reshape(num_rows, width, -1), scores.numpy(), memory

    def _search(self, memory, constants, recent, pending, is_used, empty):
        num_rows, num_tokens = pending.shape[0], empty.shape[0]
        width = self._sampler.num_beams
        tokens = tf.tile(empty[None], [num_rows, 1])  # [R, S]
        is_finished = tf.zeros([num_rows], tf.bool)
        scores = self._sampler.initial_scores(num_rows // width)
        lengths = tf.zeros([num_rows], tf.int32)

        def goes_on(index, pending, is_finished, *_):
            return (index < num_tokens) & tf.logical_not(tf.reduce_all(is_finished))

        def body(index, pending, is_finished, is_used, scores, lengths, tokens, recent):
            log_probs, recent = self._decoder.step(
                pending, tf.logical_not(is_finished), memory, recent, constants
            )
            lengths += tf.cast(tf.logical_not(is_finished), tf.int32)
            scores, parents, next_ids = self._best(log_probs, is_used, scores, is_finished)
            recent = self._decoder.select(recent, parents)
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
        best = self._decoder.select(recent, tf.range(0, num_rows, width))
        return tokens, scores, best, lengths

    def _best(self, log_probs, is_used, scores, is_finished):
        width = self._sampler.num_beams
        log_probs = self._rules.penalize(log_probs, is_used)
        scores, parents, next_ids = self._sampler(
            tf.reshape(log_probs, [-1, width, self._rules.vocabulary_size]),
            scores,
            tf.reshape(is_finished, [-1, width]),
        )
        parents += tf.range(parents.shape[0])[:, None] * width  # places among all rows
        return scores, tf.reshape(parents, [-1]), tf.reshape(next_ids, [-1])
