"""Decoder block of Transformer-XL.

Shape letters used in this module:
  B rows, T segment length, M memory length, K = M + T key length,
  D hidden width, N heads, H head width.
"""

import keras
from keras import ops

from txl_tf import functional
from txl_tf.config.model import ModelConfig
from txl_tf.layers.attention.memory_attention import MemoryAttention, check_call
from txl_tf.layers.attention.operators import AllHeads
from txl_tf.layers.attention.relative_attention import RelativeAttention
from txl_tf.layers.attention.shaw_attention import ShawAttention
from txl_tf.layers.compiled_parts import compiled_part
from txl_tf.layers.configured_layer import initializer_of
from txl_tf.layers.feed_forward import FeedForward, GRUGate
from txl_tf.layers.memory_variables import MemoryVariables, check_state_is_trained
from txl_tf.layers.seeded_dropout import SeededDropout
from txl_tf.layers.visible_keys import VisibleKeys
from txl_tf.stateless_random import fold_seed

# Sites of `fold_seed` where a block draws dropout masks: attention probabilities, attended values,
# inner activations of the feed-forward layer, its results. `models/transformer_xl.py` keeps the
# sites of its blocks apart.
_PROBABILITIES, _ATTENDED, _INNER, _TRANSFORMED = range(4)


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
            distance `K - 1 - j`. Sinusoids by default. Only with the positions of Transformer-XL.
        memory: optional float tensor `(B, M, D)`. This block's inputs for the
            previous `M` tokens, not of a stateful block. It gets no gradient.
        attention_mask: optional boolean tensor that broadcasts to `(B, N, T, K)`, True
            where attention is allowed. By default a query sees itself and all filled places before
            it, as far as `config` lets it see.
        content_bias: float tensor `(N, H)`, only with `config.share_attention_biases`.
        position_bias: float tensor `(N, H)`, as `content_bias`.
        dropout_seed: optional int32 tensor `(B, 2)` or `(2,)`, see `SeededDropout`.
        training: bool. If `True`, dropout is active.
        kept, distances, attend: optional, see `MemoryAttention`.

    Returns:
        Float tensor `(B, T, D)`; with `kept` a tuple with the next `KeysAndValues`.

    Raises:
        ValueError: If a stateful block is built without a fixed batch size, gets a batch with more
            rows or another memory, or is evaluated in a compiled function; if other arguments
            exclude each other.
    """

    def __init__(self, config, stateful=False, **kwargs):
        super().__init__(**kwargs)
        config = ModelConfig.from_dict(config) if isinstance(config, dict) else config
        self.config = config
        self.stateful = stateful
        self.kernel_initializer = initializer_of(config, config.initializer_stddev)
        self._state = None  # `MemoryVariables` of a stateful block
        common = {"dtype": self.dtype_policy}
        shared_axes = (1,) if config.variational_dropout else ()

        def dropout(name):
            return SeededDropout(config.dropout, shared_axes, name=name, **common)

        def norm(name):
            return keras.layers.LayerNormalization(
                epsilon=config.layer_norm_epsilon, name=name, **common
            )

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
        return self._state.variables[0]

    @property
    def valid_length(self):
        return self._state.variables[1]

    @property
    def variables(self):
        return super().variables + ([] if self._state is None else self._state.variables)

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
            self._state = MemoryVariables([shape], self.dtype)

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
            check_call(stateful=True, memory=memory, kept=kept)
            check_state_is_trained(training, inputs)
            num_rows = self._state.rows_of(inputs)
            memory, valid_length = self._state.read(num_rows)
        memory_length = 0 if memory is None else memory.shape[1]
        num_tokens = ops.shape(inputs)[1]
        if attention_mask is None and attend is None and kept is None:
            visible = VisibleKeys(
                num_tokens=num_tokens,
                memory_length=memory_length,
                valid_length=valid_length,
                farthest=self.config.farthest(memory_length),
            )
            attend = AllHeads().bind(visible, self.compute_dtype)
        is_transformer_xl = self.config.position_encoding == "transformer_xl"
        if is_transformer_xl and position_encoding is None and distances is None:
            position_encoding = functional.relative_positional_encoding(
                memory_length + num_tokens,
                inputs.shape[-1],
                self.config.clamp_length,
                inputs.dtype,
            )
        # Only some classes of attention take these arguments, so `None` is not passed on.
        position = {
            "position_encoding": position_encoding,
            "content_bias": content_bias,
            "position_bias": position_bias,
        }
        hidden, query_inputs, context = self.attention_inputs(inputs, memory)
        attended = self.attention(
            query_inputs,
            memory=context,
            attention_mask=attention_mask,
            dropout_seed=fold_seed(dropout_seed, _PROBABILITIES),
            training=training,
            kept=kept,
            distances=distances,
            attend=attend,
            **{name: each for name, each in position.items() if each is not None},
        )
        attended, next_kept = (attended, None) if kept is None else attended
        outputs = self._transform(hidden, attended, dropout_seed, training)
        if self.stateful:
            length = functional.next_valid_length(valid_length, memory_length, num_tokens)
            self._state.write([functional.next_memory(memory, inputs), length], num_rows)
        return outputs if kept is None else (outputs, next_kept)

    def attention_inputs(self, inputs, memory):
        """Returns the residual, the inputs of the queries, and the memory that attention reads.

        The inputs are `(B, T, D)`, memory `(B, M, D)` or `None`; the results have these shapes.
        """
        # The memory itself must not get a gradient, but its positions and its norm need one. So it
        # is stopped before both.
        context = None if memory is None else ops.stop_gradient(memory)
        hidden, memory_length = inputs, 0 if memory is None else memory.shape[1]
        if self.config.position_encoding == "learned":
            # Added in every segment again, because the distance of remembered tokens grows.
            rows = functional.distances_to_end(
                memory_length + ops.shape(inputs)[1], self.config.num_positions
            )
            positions = ops.cast(ops.take(self.position_table, rows, axis=0), inputs.dtype)
            hidden, context = functional.add_positions(positions, hidden, context)
        if not self.config.pre_norm:
            return hidden, hidden, context
        query_inputs = self.attention_norm(hidden)
        if memory_length:
            # Memory holds inputs before the norm, so its gain and offset apply to both.
            context = self.attention_norm(ops.cast(context, inputs.dtype))
        return hidden, query_inputs, context

    def project_memory(self, states):
        """Returns the keys and values `(B, M, N * H)` of the inputs of earlier tokens."""
        if self.config.pre_norm:
            states = self.attention_norm(states)
        return self.attention.key(states), self.attention.value(states)

    def _transform(self, inputs, attended, seed, training):
        """Adds the results of attention and then of the feed-forward layer to the inputs."""
        norm = self.feed_forward_norm if self.config.pre_norm else self.attention_norm
        add_attended = self._part(self._add_attended, norm.weights)
        sums = add_attended(inputs, attended, seed, training)
        transformed = self.feed_forward(
            sums[-1], dropout_seed=fold_seed(seed, _INNER), training=training
        )
        weights = () if self.config.pre_norm else self.feed_forward_norm.weights
        add_transformed = self._part(self._add_transformed, weights)
        return add_transformed(sums[0], transformed, seed, training)

    def _part(self, method, weights):
        # The matrix products of gates are faster outside of compiled parts.
        return compiled_part(method, weights) if self.config.residual_gate is None else method

    def _add_attended(self, inputs, attended, seed, training):
        """Returns the residual sum and its norm with pre norm, only its norm with post norm.

        A compiled part copies a tensor that it returns twice, so with post norm the tuple has one.
        """
        attended = self.attention_dropout(
            attended, seed=fold_seed(seed, _ATTENDED), training=training
        )
        # With pre norm the residual adds the inputs before their norm: one path passes no layer.
        add = self.attention_gate or ops.add
        hidden = add(inputs, attended)  # [B, T, D]
        if self.config.pre_norm:
            return hidden, self.feed_forward_norm(hidden)
        return (self.attention_norm(hidden),)

    def _add_transformed(self, hidden, transformed, seed, training):
        transformed = self.feed_forward_dropout(
            transformed, seed=fold_seed(seed, _TRANSFORMED), training=training
        )
        add = self.feed_forward_gate or ops.add
        hidden = add(hidden, transformed)
        return hidden if self.config.pre_norm else self.feed_forward_norm(hidden)  # [B, T, D]

    def reset_state(self):
        """Clears the memory of all rows."""
        self._state.clear()

    def compute_output_shape(self, inputs_shape, *args, **kwargs):
        return inputs_shape

    def get_config(self):
        own = {"config": self.config.to_dict(), "stateful": self.stateful}
        return {**super().get_config(), **own}
