"""Readers of padded rows with open shapes, for the signatures of an export.

Shape letters used in this module: B rows, T tokens, S tokens of one segment, M memory length, D
hidden width, L layers, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from txl_tf.export import guards
from txl_tf.inference.memory import KeyValueMemory
from txl_tf.inference.relative_model import RelativeModel
from txl_tf.models.memory import Memory
from txl_tf.models.transformer_xl import TransformerXL


def traced_once(function: Callable[..., Any], specs: list[Any]) -> Any:
    """A part of the graph that several signatures share.

    However many call it, it is in the export once, which makes the file much
    smaller.

    Args:
        function: function of tensors.
        specs: list of structures of `tf.TensorSpec`.

    Returns:
        A `tf.function`.
    """
    return tf.function(function, input_signature=specs, autograph=False)


def signature(function: Callable[..., Any], specs: list[tf.TensorSpec]) -> Any:
    """A signature: a function with named inputs of open shapes.

    Args:
        function: function of tensors that returns a dict of tensors.
        specs: list of `tf.TensorSpec` with names, in the order of the
            function's arguments.

    Returns:
        A `tf.function`.
    """

    def signature_function(*tensors):
        return function(*tensors)

    return tf.function(signature_function, input_signature=specs, autograph=False)


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


class ProjectedSteps:
    """Memory is projected once, then every token is.

    Must be made where the model's weights are those of the graph at hand.
    Unlike `TokenModel`, it takes any number of rows, and it gives
    what each layer read, which is what memory is made of.

    Args:
        model: `TransformerXL` with `"transformer_xl"` or `"shaw"` positions.
        memory_length: int. `M`.
    """

    def __init__(self, model: TransformerXL, memory_length: int) -> None:
        self._model = model
        self._memory_length = memory_length
        self._projected = RelativeModel(model)
        self._position_keys = self._projected.position_keys(memory_length + 1)

    def begin(self, memory: Memory) -> KeyValueMemory:
        """The state before the first token."""
        return self._projected.project_memory(memory)

    def step(self, token_ids: tf.Tensor, state: KeyValueMemory) -> tuple[tf.Tensor, tf.Tensor, Any]:
        """Reads a token.

        Args:
            token_ids: int32 tensor `(B,)`.
            state: what `begin` or `step` returned.

        Returns:
            Tuple of the log-probabilities `(B, V)` of the next token, what the
            layers read `(L, B, D)`, and the next state.
        """
        mask_scores = self._projected.mask_scores(1, self._memory_length, state.valid_length)
        hidden = self._model.embedding(token_ids[:, None])  # [B, 1, D]
        inputs, next_keys, next_values = [], [], []
        for block, keys, values, distance_keys in zip(
            self._projected.blocks, state.keys, state.values, self._position_keys, strict=True
        ):
            inputs.append(hidden[:, 0])
            hidden, keys, values = block(hidden, keys, values, mask_scores, distance_keys)
            next_keys.append(keys[..., 1:])
            next_values.append(values[:, :, 1:])
        valid_length = tf.minimum(state.valid_length + 1, self._memory_length)
        state = KeyValueMemory(tuple(next_keys), tuple(next_values), valid_length)
        return self._model.log_probs_of(hidden)[:, 0], tf.stack(inputs), state


class SegmentSteps:
    """Segments of one token, for models whose positions cannot be projected.

    Must be made where the model's weights are those of the graph at hand.

    Args:
        model: `TransformerXL`.
    """

    def __init__(self, model: TransformerXL) -> None:
        self._model = model

    def begin(self, memory: Memory) -> Memory:
        """The state before the first token."""
        return memory

    def step(self, token_ids: tf.Tensor, state: Memory) -> tuple[tf.Tensor, tf.Tensor, Memory]:
        """Reads a token.

        Args:
            token_ids: int32 tensor `(B,)`.
            state: what `begin` or `step` returned.

        Returns:
            Tuple of the log-probabilities `(B, V)` of the next token, what the
            layers read `(L, B, D)`, and the next state.
        """
        hidden, state = self._model.hidden_states(token_ids[:, None], state)
        inputs = tf.stack([each[:, 0] for each in hidden[:-1]])
        return self._model.log_probs_of(hidden[-1])[:, 0], inputs, state
