"""Decoder block of Transformer-XL.

Shape letters used in this module:
  B rows, T segment length, M memory length, K = M + T key length,
  D hidden width, N heads, H head width.
"""

from typing import Any

import keras
from keras import ops

from txl_tf import functional
from txl_tf.config.model import ModelConfig
from txl_tf.layers.attention import MemoryAttention, RelativeAttention, ShawAttention
from txl_tf.layers.attention_operators import AllHeads
from txl_tf.layers.compiled_parts import compiled_part
from txl_tf.layers.feed_forward import FeedForward, GRUGate
from txl_tf.layers.memory_variables import (
    check_state_is_trained,
    clear_state,
    create_state,
    read_state,
    rows_of_state,
    write_state,
)
from txl_tf.layers.seeded_dropout import SeededDropout
from txl_tf.layers.visible_keys import VisibleKeys


def initializer_of(config: ModelConfig, stddev: float) -> keras.initializers.Initializer:
    """Returns a new initializer: uniform if the model is, or normal with `stddev`."""
    if config.initializer == "uniform":
        return keras.initializers.RandomUniform(-config.initializer_range, config.initializer_range)
    return keras.initializers.RandomNormal(stddev=stddev)


def add_positions(positions: Any, inputs: Any, memory: Any) -> tuple[Any, Any]:
    """Adds positions `(K, D)`, counted from the end of the segment, to segment and memory."""
    memory_length = 0 if memory is None else memory.shape[1]
    if memory_length:
        memory = ops.cast(memory, inputs.dtype) + positions[:memory_length]
    return inputs + positions[memory_length:], memory


@keras.saving.register_keras_serializable(package="txl_tf")
class DecoderBlock(keras.layers.Layer):
    """Attention over segment and memory, then a feed-forward layer.

    With post norm, dropout, the residual and layer normalisation follow each of
    the two, as in Dai et al. (2019), Section 3.3. With pre norm, normalisation
    precedes each of them.

    Without `stateful`, memory is a call argument, and the caller computes the next memory with
    `functional.next_memory` of this block's inputs. With `stateful=True` the block keeps memory in
    its own variables, like `keras.layers.RNN`: row `r` of a batch continues row `r` of the previous
    one, and in a smaller batch the missing rows keep their memory. `fit` trains with it; `evaluate`
    and `predict`, which would overwrite it, are refused.

    Args:
        config: `ModelConfig`, or the dict that its `to_dict` returns. Its fields for the
            vocabulary have no effect.
        stateful: bool. If `True`, the block keeps its memory.
        **kwargs: other keyword arguments passed to `keras.layers.Layer`.

    Attributes:
        memory: variable `(B, M, D)`, only in a stateful block. It is not a weight and is not
            saved.
        valid_length: int32 variable `(B,)`. Number of tokens in `memory`.

    Call arguments:
        inputs: float tensor `(B, T, D)`. The current segment.
        position_encoding: optional float tensor `(K, D)`; row `j` encodes the
            distance `K - 1 - j`. Sinusoids by default.
        memory: optional float tensor `(B, M, D)`. This block's inputs for the
            previous `M` tokens, not of a stateful block. It gets no gradient.
        attention_mask: optional boolean tensor that broadcasts to `(B, N, T, K)`, True
            where attention is allowed. By default every filled place up to the query.
        content_bias: float tensor `(N, H)`, only with `config.share_attention_biases`.
        position_bias: float tensor `(N, H)`, as `content_bias`.
        dropout_seed: optional int32 tensor `(B, 2)` or `(2,)`, see `SeededDropout`.
        training: bool. If `True`, dropout is active.
        kept, distances, attend: optional, see `MemoryAttention`.

    Returns:
        Float tensor `(B, T, D)`; with `kept` a tuple with the next `KeysAndValues`.

    Raises:
        ValueError: If a stateful block is built without a fixed batch size, gets a batch with more
            rows, or is evaluated in a compiled function.
    """

    def __init__(self, config, stateful=False, **kwargs):
        super().__init__(**kwargs)
        config = ModelConfig.from_dict(config) if isinstance(config, dict) else config
        self.config = config
        self.stateful = stateful
        self.kernel_initializer = initializer_of(config, config.initializer_stddev)
        self.__dict__["_state"] = ()  # hidden from Keras' tracking, see `create_state`
        common = {"dtype": self.dtype_policy}
        shared_axes = (1,) if config.variational_dropout else ()

        def dropout(name):
            return SeededDropout(config.dropout, shared_axes, name=name, **common)

        def norm(name):
            epsilon = config.layer_norm_epsilon
            return keras.layers.LayerNormalization(epsilon=epsilon, name=name, **common)

        self.attention = self._create_attention()
        self.attention_dropout = dropout("attention_dropout")
        self.attention_norm = norm("attention_norm")
        self.feed_forward = FeedForward(
            config.intermediate_dim,
            dropout=config.dropout,
            variational_dropout=config.variational_dropout,
            kernel_initializer=self.kernel_initializer.clone(),
            name="feed_forward",
            **common,
        )
        self.feed_forward_dropout = dropout("feed_forward_dropout")
        self.feed_forward_norm = norm("feed_forward_norm")
        self.attention_gate = self.feed_forward_gate = None
        if config.residual_gate is not None:
            common["kernel_initializer"] = self.kernel_initializer
            self.attention_gate = GRUGate(name="attention_gate", **common)
            self.feed_forward_gate = GRUGate(name="feed_forward_gate", **common)

    def _create_attention(self):
        config = self.config
        arguments = {
            "num_heads": config.num_heads,
            "head_dim": config.head_dim,
            "dropout": config.attention_dropout,
            "kernel_initializer": self.kernel_initializer.clone(),
            "dtype": self.dtype_policy,
            "name": "attention",
        }
        match config.position_encoding:
            case "transformer_xl":
                return RelativeAttention(own_biases=not config.share_attention_biases, **arguments)
            case "shaw" | "shaw_two_terms" as encoding:
                has_biases = encoding == "shaw"
                return ShawAttention(
                    num_positions=config.num_positions, has_biases=has_biases, **arguments
                )
        return MemoryAttention(**arguments)

    @property
    def memory(self):
        return self._state[0]

    @property
    def valid_length(self):
        return self._state[1]

    @property
    def variables(self):
        return [*super().variables, *self._state]

    def build(self, inputs_shape, **other_shapes):
        batch_size, _, hidden_dim = inputs_shape
        self.attention.build(inputs_shape)
        self.attention_norm.build((None, None, hidden_dim))
        self.feed_forward.build(inputs_shape)
        self.feed_forward_norm.build((None, None, hidden_dim))
        if self.config.residual_gate is not None:
            self.attention_gate.build(inputs_shape)
            self.feed_forward_gate.build(inputs_shape)
        if self.config.position_encoding == "learned":
            self.position_table = self.add_weight(
                shape=(self.config.num_positions, hidden_dim),
                initializer=self.kernel_initializer.clone(),
                name="positions",
            )
        if self.stateful:
            if batch_size is None:
                raise ValueError(
                    "A block with `stateful=True` needs a fixed batch size, as given by "
                    f"`keras.Input(batch_shape=...)`. Received: inputs_shape={inputs_shape}"
                )
            shape = (batch_size, self.config.memory_length, hidden_dim)
            self.__dict__["_state"] = create_state([shape], self.dtype)

    def call(
        self,
        inputs,
        position_encoding=None,
        memory=None,
        attention_mask=None,
        content_bias=None,
        position_bias=None,
        dropout_seed=None,
        training=False,
        kept=None,
        distances=None,
        attend=None,
    ):
        valid_length = None
        if self.stateful:
            check_state_is_trained(training, inputs)
            num_rows = rows_of_state(self._state, inputs)
            memory, valid_length = read_state(self._state, num_rows)
        memory_length = 0 if memory is None else memory.shape[1]
        if attention_mask is None and attend is None:
            visible = VisibleKeys(
                num_tokens=ops.shape(inputs)[1],
                memory_length=memory_length,
                valid_length=valid_length,
                farthest=self.config.farthest(memory_length),
            )
            attend = AllHeads().bind(visible, self.compute_dtype)
        position = {}
        if self.config.position_encoding == "transformer_xl":
            if position_encoding is None and distances is None:
                position_encoding = functional.relative_positional_encoding(
                    memory_length + ops.shape(inputs)[1],
                    inputs.shape[-1],
                    self.config.clamp_length,
                    inputs.dtype,
                )
            position = {
                "position_encoding": position_encoding,
                "content_bias": content_bias,
                "position_bias": position_bias,
            }
        # Here, not in the attention: added positions and normalisation of the memory need a
        # gradient, but the memory itself must not get one.
        hidden, context = inputs, None if memory is None else ops.stop_gradient(memory)
        if self.config.position_encoding == "learned":
            # Added in every segment again, because the distance of remembered tokens grows.
            rows = functional.distances_to_end(
                memory_length + ops.shape(inputs)[1], self.config.num_positions
            )
            positions = ops.cast(ops.take(self.position_table, rows, axis=0), inputs.dtype)
            hidden, context = add_positions(positions, hidden, context)
        query_inputs = hidden
        if self.config.pre_norm:
            query_inputs = self.attention_norm(hidden)
            if memory_length:
                # Memory holds inputs before the norm, so its gain and offset apply to both.
                context = self.attention_norm(ops.cast(context, inputs.dtype))
        attended = self.attention(
            query_inputs,
            memory=context,
            attention_mask=attention_mask,
            dropout_seed=functional.fold_seed(dropout_seed, 0),
            training=training,
            kept=kept,
            distances=distances,
            attend=attend,
            **position,
        )
        attended, next_kept = (attended, None) if kept is None else attended
        outputs = self._transform(hidden, attended, dropout_seed, training)
        if self.stateful:
            length = functional.next_valid_length(valid_length, memory_length, ops.shape(inputs)[1])
            write_state(self._state, [functional.next_memory(memory, inputs), length], num_rows)
        return outputs if kept is None else (outputs, next_kept)

    def project_memory(self, states):
        """Returns the keys and values `(B, M, N * H)` of the inputs of earlier tokens."""
        if self.config.pre_norm:
            states = self.attention_norm(states)
        return self.attention.key(states), self.attention.value(states)

    def _transform(self, inputs, attended, seed, training):
        """Adds the results of attention and then of the feed-forward layer to the inputs."""
        # The matrix products of gates are faster outside of compiled parts.
        part = compiled_part if self.attention_gate is None else lambda method, weights: method
        # A compiled part copies a result that it returns twice, so post norm returns one tensor.
        norm = self.feed_forward_norm if self.config.pre_norm else self.attention_norm
        added = part(self._add_attended, norm.weights)(inputs, attended, seed, training)
        transformed = self.feed_forward(
            added[-1], dropout_seed=functional.fold_seed(seed, 2), training=training
        )
        weights = () if self.config.pre_norm else self.feed_forward_norm.weights
        return part(self._add_transformed, weights)(added[0], transformed, seed, training)

    def _add_attended(self, inputs, attended, seed, training):
        """Returns the residual sum and its norm with pre norm, only its norm with post norm."""
        attended = self.attention_dropout(
            attended, seed=functional.fold_seed(seed, 1), training=training
        )
        # The residual adds the inputs before their norm, so one path passes no layer.
        hidden = (self.attention_gate or ops.add)(inputs, attended)  # [B, T, D]
        if self.config.pre_norm:
            return hidden, self.feed_forward_norm(hidden)
        return (self.attention_norm(hidden),)

    def _add_transformed(self, hidden, transformed, seed, training):
        transformed = self.feed_forward_dropout(
            transformed, seed=functional.fold_seed(seed, 3), training=training
        )
        hidden = (self.feed_forward_gate or ops.add)(hidden, transformed)
        return hidden if self.config.pre_norm else self.feed_forward_norm(hidden)  # [B, T, D]

    def reset_state(self):
        """Clears the memory of all rows."""
        clear_state(self._state)

    def compute_output_shape(self, inputs_shape, *args, **kwargs):
        return inputs_shape

    def get_config(self):
        config = self.config.to_dict()
        return {**super().get_config(), "config": config, "stateful": self.stateful}
