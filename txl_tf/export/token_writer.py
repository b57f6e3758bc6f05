"""Writes tokens, row by row to its own length, within a graph.

Shape letters used in this module:
  B rows, S tokens to write, M memory length, D hidden width, L layers.
"""

from typing import Any

import tensorflow as tf

from txl_tf.export.projected_steps import ProjectedSteps
from txl_tf.export.row_sampler import RowSampler
from txl_tf.export.sampling import Sampling
from txl_tf.export.segment_steps import SegmentSteps
from txl_tf.models.memory import Memory
from txl_tf.models.transformer_xl import TransformerXL


class TokenWriter:
    """Goes on from a token and a memory.

    Must be made where the model's weights are those of the graph at hand.

    Args:
        model: `TransformerXL`, with a memory.
    """

    def __init__(self, model: TransformerXL) -> None:
        if model.config.has_relative_positions:
            self._steps: Any = ProjectedSteps(model, model.config.memory_length)
        else:
            self._steps = SegmentSteps(model)

    def write(
        self, pending: tf.Tensor, memory: Memory, sampling: Sampling
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, Memory]:
        """Writes.

        Args:
            pending: int32 tensor `(B,)`. The token to go on from.
            memory: `Memory` of what is before it.
            sampling: `Sampling`.

        Returns:
            Tuple of the tokens, int32 `(B, S)`, with zeros behind a row's last;
            their negative log-likelihoods, float32 `(B, S)`, zeros too; how
            many they are, int32 `(B,)`; and the `Memory` of all but the last.
        """
        sampler = RowSampler(sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed)
        width = tf.reduce_max(sampling.num_tokens)
        arrays = (
            tf.TensorArray(tf.int32, size=width, element_shape=[None]),
            tf.TensorArray(tf.float32, size=width, element_shape=[None]),
            # Layer by layer what was read, of which memory is made.
            tf.TensorArray(tf.float32, size=width, element_shape=[len(memory.states), None, None]),
        )

        def goes_on(_index, _pending, is_active, *_):
            return tf.reduce_any(is_active)

        def body(index, pending, is_active, counts, arrays, state):
            log_probs, inputs, state = self._steps.step(pending, state)
            token_ids = sampler(log_probs, index)
            nll = -tf.gather(log_probs, token_ids, batch_dims=1)
            written = (
                tf.where(is_active, token_ids, 0),
                tf.where(is_active, nll, 0.0),
                inputs,
            )
            arrays = tuple(
                array.write(index, each) for array, each in zip(arrays, written, strict=True)
            )
            counts += tf.cast(is_active, tf.int32)
            is_active &= (counts < sampling.num_tokens) & (token_ids != sampling.stop_token_id)
            return index + 1, token_ids, is_active, counts, arrays, state

        none = tf.zeros_like(pending)
        begin = (tf.constant(0), pending, tf.equal(none, 0), none, arrays)
        steps, *_, counts, arrays, _ = tf.while_loop(
            goes_on, body, (*begin, self._steps.begin(memory))
        )
        token_ids, nll, inputs = (array.gather(tf.range(steps)) for array in arrays)
        padding = [[0, 0], [0, width - steps]]
        token_ids, nll = (tf.pad(tf.transpose(each), padding) for each in (token_ids, nll))
        return token_ids, nll, counts, _remember(memory, inputs, counts)


def _remember(memory: Memory, inputs: tf.Tensor, counts: tf.Tensor) -> Memory:
    """Memory with the first tokens of each row, of what all layers read `(S, L, B, D)`."""
    memory_length = memory.states[0].shape[1]
    places = counts[:, None] + tf.range(memory_length)  # [B, M]
    states = tuple(
        tf.gather(tf.concat([state, read], axis=1), places, batch_dims=1)
        for state, read in zip(
            memory.states, tf.unstack(tf.transpose(inputs, [1, 2, 0, 3])), strict=True
        )
    )
    return Memory(states, tf.minimum(memory.valid_length + counts, memory_length))
