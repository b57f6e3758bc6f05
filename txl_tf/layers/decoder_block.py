"""One decoder block of Transformer-XL, with or without a memory of its own.

Shape letters used in this module:
  B rows, T segment length, M memory length, K = M + T key length,
  D hidden width, F inner width, N heads, H head width, P learned positions.
"""

import keras
from keras import ops

from txl_tf import functional
from txl_tf.layers.attention import AbsoluteAttention, ShawAttention
from txl_tf.layers.dropout import SeededDropout
from txl_tf.layers.feed_forward import FeedForward
from txl_tf.layers.relative_attention import RelativeAttention


@keras.saving.register_keras_serializable(package="txl_tf")
class DecoderBlock(keras.layers.Layer):
    """Attention over segment and memory, then a feed-forward layer.

    Both are followed by dropout, the residual and layer normalisation (post
    norm), as in Dai et al. (2019), Section 3.3; or preceded by the
    normalisation (pre norm).

    Positions come in four ways: `"transformer_xl"` (Dai et al., 2019), `"shaw"`
    (Shaw et al., 2018), `"learned"`, a table of absolute positions added to
    what this block reads (Al-Rfou et al., 2019), and `"sinusoidal"`, where the
    inputs of the first block carry them (Vaswani et al., 2017) and the block
    does nothing. Absolute positions are counted from the end of the segment.

    Memory comes in two ways. Without `stateful`, it is a call argument and the
    caller keeps what the next segment needs (`functional.next_memory` of this
    block's inputs). With `stateful=True` the block keeps it in variables of
    its own, in the manner of `keras.layers.RNN`: the batch size is fixed, each
    call continues where the last one stopped, `reset_state` forgets. Row `r`
    of a batch must then continue row `r` of the batch before. Validation reads
    into the same memory; `StatefulTransformerXL` keeps the two apart.

    Args:
        num_heads: int. Number of attention heads `N`.
        head_dim: int. Width `H` of one head.
        intermediate_dim: int. Inner width `F`.
        position_encoding: str. One of the four above.
        num_positions: optional int. `P`, the rows of a learned table; farther
            positions share the last. For `"shaw"` and `"learned"`.
        pre_norm: bool. Whether normalisation comes first.
        dropout: float in `[0, 1)`. Rate on both results and the inner
            activations.
        variational_dropout: bool. Whether a mask is the same for all positions
            of a row.
        attention_dropout: float in `[0, 1)`. Rate on attention probabilities.
        own_biases: bool. See `RelativeAttention`, to which it is passed.
        layer_norm_epsilon: float. Added to the variance.
        kernel_initializer: initializer of all kernels. Defaults to a normal
            distribution of stddev 0.02.
        stateful: bool. Whether the block owns its memory.
        memory_length: int. `M`; only a stateful block needs it.
        clamp_length: optional int. Larger distances share one encoding; only
            for calls without `position_encoding`.
        same_length: bool. Whether every query sees equally many positions;
            only for calls without `attention_mask`.
        same_length_keys: str. See `functional.causal_memory_mask`.
        **kwargs: other keyword arguments passed to `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor `(B, T, D)`. The current segment.
        position_encoding: optional float tensor `(K, D)`; row `j` encodes the
            distance `K - 1 - j`. Sinusoids by default.
        memory: optional float tensor `(B, M, D)`: this block's inputs for the
            `M` tokens before. No gradient flows into it. Not for a stateful
            block.
        attention_mask: optional boolean tensor that broadcasts to `(B, N, T, K)`, True
            where attention is allowed. Causal by default, and without the
            unfilled part of a block's own memory.
        content_bias: float tensor `(N, H)`, without `own_biases`.
        position_bias: float tensor `(N, H)`, without `own_biases`.
        dropout_seed: optional int32 tensor `(B, 2)` or `(2,)`, see `SeededDropout`.
        training: bool. Whether dropout is active.

    Returns:
        Float tensor `(B, T, D)`.

    Raises:
        ValueError: If a stateful block has no `memory_length`, is given a
            memory, or is built without a fixed batch size.
    """

    def __init__(
        self,
        num_heads,
        head_dim,
        intermediate_dim,
        position_encoding="transformer_xl",
        num_positions=None,
        pre_norm=False,
        dropout=0.0,
        variational_dropout=False,
        attention_dropout=0.0,
        own_biases=True,
        layer_norm_epsilon=1e-12,
        kernel_initializer=None,
        stateful=False,
        memory_length=0,
        clamp_length=None,
        same_length=False,
        same_length_keys="memory_and_self",
        **kwargs,
    ):
        super().__init__(**kwargs)
        has_table = position_encoding in ("shaw", "learned")
        if has_table != (num_positions is not None and num_positions > 0):
            raise ValueError(
                '`num_positions` must be positive for "shaw" and "learned" and None for others. '
                f"Received: position_encoding={position_encoding!r}, num_positions={num_positions}"
            )
        if stateful and memory_length <= 0:
            raise ValueError(
                "A block with `stateful=True` needs a positive `memory_length`. "
                f"Received: memory_length={memory_length}"
            )
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.intermediate_dim = intermediate_dim
        self.position_encoding = position_encoding
        self.num_positions = num_positions
        self.pre_norm = pre_norm
        self.dropout = dropout
        self.variational_dropout = variational_dropout
        self.attention_dropout = attention_dropout
        self.own_biases = own_biases
        self.layer_norm_epsilon = layer_norm_epsilon
        if kernel_initializer is None:
            kernel_initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.stateful = stateful
        self.memory_length = memory_length
        self.clamp_length = clamp_length
        self.same_length = same_length
        self.same_length_keys = same_length_keys
        self._create_layers()

    def _create_layers(self):
        shared_axes = (1,) if self.variational_dropout else ()
        common = {"dtype": self.dtype_policy}
        self.attention = self._create_attention()
        self.attention_dropout_layer = SeededDropout(
            self.dropout, shared_axes, name="attention_dropout", **common
        )
        self.attention_norm = keras.layers.LayerNormalization(
            epsilon=self.layer_norm_epsilon, name="attention_norm", **common
        )
        self.feed_forward = FeedForward(
            self.intermediate_dim,
            dropout=self.dropout,
            variational_dropout=self.variational_dropout,
            kernel_initializer=self.kernel_initializer.clone(),
            name="feed_forward",
            **common,
        )
        self.feed_forward_dropout = SeededDropout(
            self.dropout, shared_axes, name="feed_forward_dropout", **common
        )
        self.feed_forward_norm = keras.layers.LayerNormalization(
            epsilon=self.layer_norm_epsilon, name="feed_forward_norm", **common
        )

    def _create_attention(self):
        arguments = {
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            "dropout": self.attention_dropout,
            "kernel_initializer": self.kernel_initializer.clone(),
            "dtype": self.dtype_policy,
            "name": "attention",
        }
        if self.position_encoding == "transformer_xl":
            return RelativeAttention(own_biases=self.own_biases, **arguments)
        if self.position_encoding == "shaw":
            return ShawAttention(num_positions=self.num_positions, **arguments)
        if self.position_encoding in ("sinusoidal", "learned"):
            return AbsoluteAttention(**arguments)
        raise ValueError(
            '`position_encoding` must be "transformer_xl", "shaw", "sinusoidal" or "learned". '
            f"Received: position_encoding={self.position_encoding!r}"
        )

    def build(
        self,
        inputs_shape,
        position_encoding_shape=None,
        memory_shape=None,
        attention_mask_shape=None,
        content_bias_shape=None,
        position_bias_shape=None,
        dropout_seed_shape=None,
    ):
        batch_size, _, hidden_dim = inputs_shape
        self.attention.build(inputs_shape)
        self.attention_norm.build((None, None, hidden_dim))
        self.feed_forward.build(inputs_shape)
        self.feed_forward_norm.build((None, None, hidden_dim))
        if self.position_encoding == "learned":
            self.positions = self.add_weight(
                shape=(self.num_positions, hidden_dim),
                initializer=self.kernel_initializer.clone(),
                name="positions",
            )
        if self.stateful:
            if batch_size is None:
                raise ValueError(
                    "A block with `stateful=True` needs a fixed batch size, as given by "
                    f"`keras.Input(batch_shape=...)`. Received: inputs_shape={inputs_shape}"
                )
            self.memory = self.add_weight(
                shape=(batch_size, self.memory_length, hidden_dim),
                initializer="zeros",
                trainable=False,
                name="memory",
            )
            self.valid_length = self.add_weight(
                shape=(batch_size,),
                initializer="zeros",
                dtype="int32",
                trainable=False,
                name="valid_length",
            )

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
    ):
        valid_length = None
        if self.stateful:
            if memory is not None:
                raise ValueError(
                    f"A block with `stateful=True` keeps its own memory. Received: memory={memory}"
                )
            memory = ops.convert_to_tensor(self.memory)
            valid_length = ops.convert_to_tensor(self.valid_length)
        if attention_mask is None:
            attention_mask = functional.causal_memory_mask(
                ops.shape(inputs)[1],
                0 if memory is None else memory.shape[1],
                valid_length,
                self.same_length,
                self.same_length_keys,
            )
        position = {}
        if self.position_encoding == "transformer_xl":
            if position_encoding is None:
                position_encoding = self._default_encoding(inputs, memory)
            position = {
                "position_encoding": position_encoding,
                "content_bias": content_bias,
                "position_bias": position_bias,
            }
        outputs = self._transform(
            inputs, memory, attention_mask, dropout_seed, training, **position
        )
        if self.stateful:
            self._remember(inputs, memory, valid_length)
        return outputs

    def _default_encoding(self, inputs, memory):
        memory_length = 0 if memory is None else memory.shape[1]
        return functional.relative_positional_encoding(
            memory_length + ops.shape(inputs)[1],
            inputs.shape[-1],
            self.clamp_length,
            dtype=inputs.dtype,
        )

    def _transform(self, inputs, memory, attention_mask, seed, training, **position):
        if memory is not None:
            # Here and not in the attention: what is learned of its positions and by
            # its normalisation needs the gradient that the memory must not have.
            memory = ops.stop_gradient(memory)
        if self.position_encoding == "learned":
            inputs, memory = self._add_positions(inputs, memory)
        query_inputs = inputs
        if self.pre_norm:
            query_inputs = self.attention_norm(inputs)
            if memory is not None and memory.shape[1] != 0:
                memory = self.attention_norm(ops.cast(memory, inputs.dtype))
        attended = self.attention(
            query_inputs,
            memory=memory,
            attention_mask=attention_mask,
            dropout_seed=functional.fold_seed(seed, 0),
            training=training,
            **position,
        )
        attended = self.attention_dropout_layer(
            attended, seed=functional.fold_seed(seed, 1), training=training
        )
        hidden = inputs + attended  # [B, T, D]
        if not self.pre_norm:
            hidden = self.attention_norm(hidden)
        transformed = self.feed_forward_norm(hidden) if self.pre_norm else hidden
        transformed = self.feed_forward(
            transformed, dropout_seed=functional.fold_seed(seed, 2), training=training
        )
        transformed = self.feed_forward_dropout(
            transformed, seed=functional.fold_seed(seed, 3), training=training
        )
        hidden = hidden + transformed
        return hidden if self.pre_norm else self.feed_forward_norm(hidden)  # [B, T, D]

    def _add_positions(self, inputs, memory):
        """Positions of memory and segment as seen from the segment's end."""
        memory_length = 0 if memory is None else memory.shape[1]
        key_length = memory_length + ops.shape(inputs)[1]
        rows = functional.distances_to_end(key_length, self.num_positions)
        positions = ops.cast(ops.take(self.positions, rows, axis=0), inputs.dtype)  # [K, D]
        if memory_length:
            memory = ops.cast(memory, inputs.dtype) + positions[:memory_length]
        return inputs + positions[memory_length:], memory

    def _remember(self, inputs, memory, valid_length):
        segment_length = ops.shape(inputs)[1]
        self.memory.assign(functional.next_memory(memory, inputs))
        self.valid_length.assign(
            functional.next_valid_length(valid_length, self.memory_length, segment_length)
        )

    def reset_state(self):
        """Forgets the memory of all rows; only for a stateful block.

        Raises:
            ValueError: If the block is not stateful, or not built yet.
        """
        if not self.stateful or not self.built:
            raise ValueError(
                "Only a built block with `stateful=True` has a memory to reset. "
                f"Received: stateful={self.stateful}, built={self.built}"
            )
        self.memory.assign(ops.zeros(self.memory.shape, dtype=self.memory.dtype))
        self.valid_length.assign(ops.zeros(self.valid_length.shape, dtype=self.valid_length.dtype))

    def compute_output_shape(self, inputs_shape, *args, **kwargs):
        return inputs_shape

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            "intermediate_dim": self.intermediate_dim,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "position_encoding": self.position_encoding,
            "num_positions": self.num_positions,
            "pre_norm": self.pre_norm,
            "variational_dropout": self.variational_dropout,
            "own_biases": self.own_biases,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "stateful": self.stateful,
            "memory_length": self.memory_length,
            "clamp_length": self.clamp_length,
            "same_length": self.same_length,
            "same_length_keys": self.same_length_keys,
        }
