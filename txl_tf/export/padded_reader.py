"""Reads rows of different lengths, segment by segment, within a graph.

Shape letters used in this module:
  B rows, T tokens, S tokens of one segment, M memory length, D hidden width,
  L layers.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from txl_tf.export import guards
from txl_tf.export.tracing import traced_once
from txl_tf.models.memory import Memory
from txl_tf.models.transformer_xl import TransformerXL


class PaddedReader:
    """Runs a model whose weights come as tensors.

    Rows are padded on the right. What is behind a row's length has no influence
    on it: no token attends to what comes later, and memory takes what is
    before. Where positions are absolute, all rows must be of one length.

    Args:
        model: `TransformerXL`, in float32.
    """

    def __init__(self, model: TransformerXL) -> None:
        self.model = model
        self._read_segment = self._traced()

    def with_weights(self, weights: list[tf.Tensor]) -> keras.StatelessScope:
        """A scope in which the model has these weights."""
        return keras.StatelessScope(
            state_mapping=list(zip(self.model.weights, weights, strict=True))
        )

    def _traced(self) -> Any:
        config = self.model.config
        memory_length = config.effective_memory_length
        states = (tf.TensorSpec([None, memory_length, config.hidden_dim]),) * config.num_layers
        rows = tf.TensorSpec([None], tf.int32)
        weights = [tf.TensorSpec(variable.shape) for variable in self.model.weights]
        ids = tf.TensorSpec([None, None], tf.int32)
        return traced_once(self._segment, [weights, ids, rows, states, rows])

    def _segment(self, weights, token_ids, kept_lengths, states, valid_length):
        """One segment: hidden states, and the memory with the tokens that are kept."""
        with self.with_weights(weights):
            hidden, _ = self.model.hidden_states(token_ids, Memory(states, valid_length))
        memory_length = states[0].shape[1]
        places = kept_lengths[:, None] + tf.range(memory_length)  # [B, M]
        next_states = tuple(
            tf.gather(tf.concat([state, inputs], axis=1), places, batch_dims=1)
            for state, inputs in zip(states, hidden[:-1], strict=True)
        )
        next_length = tf.minimum(valid_length + kept_lengths, memory_length)
        return hidden[-1], next_states, next_length

    def read(
        self,
        weights: list[tf.Tensor],
        token_ids: tf.Tensor,
        lengths: tf.Tensor,
        memory: Memory,
        carry: tf.Tensor,
        use: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor],
    ) -> tuple[tf.Tensor, Memory]:
        """Reads token ids, a segment of the model's length at a time.

        Args:
            weights: list of float32 tensors.
            token_ids: int32 tensor `(B, T)`, `T` may be 0.
            lengths: int32 tensor `(B,)`. How many tokens of each row are to be
                remembered, 0 to `T`.
            memory: `Memory` of what came before.
            carry: tensor that `use` changes.
            use: function of `carry`, the hidden states `(B, S, D)` of a segment
                and the place of its first token, that returns the next `carry`.

        Returns:
            Tuple of the last `carry` and the next `Memory`.
        """
        num_tokens = tf.shape(token_ids)[1]
        if not self.model.config.has_relative_positions:
            lengths = _of_one_length(lengths)

        def body(start, states, valid_length, carry):
            stop = tf.minimum(start + self.model.config.segment_length, num_tokens)
            kept = tf.clip_by_value(lengths - start, 0, stop - start)
            hidden, states, valid_length = self._read_segment(
                weights, token_ids[:, start:stop], kept, states, valid_length
            )
            return stop, states, valid_length, use(carry, hidden, start)

        state = (tf.constant(0), memory.states, memory.valid_length, carry)
        shapes = tf.nest.map_structure(lambda each: each.shape, state)
        _, states, valid_length, carry = tf.while_loop(
            lambda start, *_: start < num_tokens,
            body,
            state,
            # What is carried may grow from segment to segment.
            (*shapes[:3], tf.TensorShape([None, None])),
        )
        return carry, Memory(states, valid_length)


def _of_one_length(lengths: tf.Tensor) -> tf.Tensor:
    return guards.refuse_unless(
        tf.reduce_all(tf.equal(lengths, lengths[:1])),
        lambda: tf.strings.join(
            [
                "lengths are ",
                tf.strings.reduce_join(tf.strings.as_string(lengths), separator=", "),
                "; a model with absolute positions reads rows of one length.",
            ]
        ),
        lengths,
    )
