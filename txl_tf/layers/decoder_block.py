"""Decoder block of Transformer-XL, its position encodings, and the variables of its memory.

Shape letters used in this module:
  B rows, T segment length, M memory length, K = M + T key length,
  D hidden width, F inner width, N heads, H head width, P learned positions.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import keras
from keras import ops

from txl_tf import functional
from txl_tf.config.base import FrozenConfig
from txl_tf.config.model import LEARNED_ENCODINGS, ModelConfig, PositionEncoding
from txl_tf.layers.attention import AbsoluteAttention, RelativeAttention, ShawAttention
from txl_tf.layers.compiled_parts import compiled_part
from txl_tf.layers.feed_forward import FeedForward, GRUGate, SeededDropout, normal_unless


@dataclasses.dataclass(frozen=True, kw_only=True)
class Positions(FrozenConfig):
    """Encoding of positions, and how far back a query attends.

    There are five encodings. `"transformer_xl"` is that of Dai et al. (2019). `"shaw"` is that of
    Shaw et al. (2018), see `ShawAttention`; `"shaw_two_terms"` is the same without biases.
    `"learned"` adds a table of absolute positions to the inputs of each block (Al-Rfou et al.,
    2019). `"sinusoidal"` adds sinusoids to the inputs of the first block (Vaswani et al., 2017).
    Absolute positions are counted from the end of the segment.

    Raises:
        ValueError: If a value is out of its range, or `num_positions` does not fit the
            encoding.
    """

    encoding: PositionEncoding = "transformer_xl"
    """One of the five encodings."""
    num_positions: int | None = None
    """Rows `P` of a learned table. Positions beyond the table share its last row."""
    clamp_length: int | None = None
    """Distances above this share one sinusoid. None means no clamp."""
    same_length: bool = False
    """True if every query sees the same number of keys."""
    same_length_keys: Literal["memory_and_self", "memory"] = "memory_and_self"
    """Number of keys with `same_length`, see `functional.causal_memory_mask`."""

    def validate(self) -> None:
        has_table = self.encoding in LEARNED_ENCODINGS
        if has_table != (self.num_positions is not None and self.num_positions > 0):
            raise ValueError(
                f"`num_positions` must be positive for {', '.join(LEARNED_ENCODINGS)} "
                "and None for others. "
                f"Received: encoding={self.encoding!r}, num_positions={self.num_positions}"
            )

    @classmethod
    def of_model(cls, config: ModelConfig) -> "Positions":
        """Returns the positions set by a model's configuration."""
        names = ("num_positions", "clamp_length", "same_length", "same_length_keys")
        others = {name: getattr(config, name) for name in names}
        return cls(encoding=config.position_encoding, **others)

    def sinusoids(self, key_length: Any, hidden_dim: int, dtype: str) -> Any:
        """Returns the encodings `(K, D)` of the distances `K - 1` to 0."""
        return functional.relative_positional_encoding(
            key_length, hidden_dim, self.clamp_length, dtype=dtype
        )

    def farthest(self, memory_length: int) -> int | None:
        """Returns the largest distance that a query sees; `None` means no limit."""
        if not self.same_length:
            return None
        return memory_length - (self.same_length_keys == "memory")

    def mask(self, segment_length: Any, memory_length: int, valid_length: Any = None) -> Any:
        """Returns `functional.causal_memory_mask`, bool `(B or 1, 1, T, K)`."""
        return functional.causal_memory_mask(
            segment_length, memory_length, valid_length, self.same_length, self.same_length_keys
        )


# Arguments that a `DecoderBlock` stores unchanged.
_PLAIN_OPTIONS = (
    *("num_heads", "head_dim", "intermediate_dim", "pre_norm", "residual_gate", "dropout"),
    *("variational_dropout", "attention_dropout", "own_biases", "layer_norm_epsilon"),
    *("stateful", "memory_length"),
)


def create_state(shapes: Sequence[tuple[int, ...]], dtype: str) -> list[Any]:
    """Creates variables for remembered states; the last one is their int32 valid length `(B,)`.

    They depend on the batch size and begin empty, so they are not weights. A layer hides them from
    Keras' tracking, so that they are neither saved nor loaded. It lists them in `variables`,
    because a step on JAX only changes variables listed there.
    """
    # Without autocast, reading does not round the states again.
    options = {"trainable": False, "autocast": False}
    variables = [keras.Variable("zeros", shape, dtype, **options) for shape in shapes]
    return [*variables, keras.Variable("zeros", shapes[0][:1], "int32", **options)]


def read_state(variables: Sequence[Any], num_rows: Any = None) -> list[Any]:
    """Returns a tensor for each variable, of the first `num_rows` rows if given."""
    # Copied, because a variable may be assigned before its value is used.
    tensors = [ops.copy(variable) for variable in variables]
    return tensors if num_rows is None else [tensor[:num_rows] for tensor in tensors]


def write_state(variables: Sequence[Any], tensors: Sequence[Any], num_rows: Any = None) -> None:
    """Replaces the state of all rows, or of the first `num_rows` rows only."""
    for variable, tensor in zip(variables, tensors, strict=True):
        if num_rows is not None:
            kept = ops.convert_to_tensor(variable)[num_rows:]
            # The compiler cannot infer the number of rows after concatenation.
            tensor = ops.reshape(ops.concatenate([tensor, kept], axis=0), variable.shape)
        variable.assign(tensor)


def clear_state(variables: Sequence[Any]) -> None:
    """Empties the memory of all rows."""
    for variable in variables:
        variable.assign(ops.zeros(variable.shape, variable.dtype))


@keras.saving.register_keras_serializable(package="txl_tf")
class DecoderBlock(keras.layers.Layer):
    """Attention over segment and memory, then a feed-forward layer.

    With post norm, dropout, the residual and layer normalisation follow each of
    the two, as in Dai et al. (2019), Section 3.3. With pre norm, normalisation
    precedes each of them.

    Without `stateful`, memory is a call argument, and the caller computes the next memory with
    `functional.next_memory` of this block's inputs. With `stateful=True` the block keeps memory in
    its own variables, like `keras.layers.RNN`. The batch size is then fixed. Row `r` of a batch
    must continue row `r` of the previous batch. `reset_state` clears the memory. Validation uses
    the same memory; `StatefulTransformerXL` has a separate one.

    Args:
        num_heads: int. Number of attention heads `N`.
        head_dim: int. Width `H` of one head.
        intermediate_dim: int. Inner width `F`.
        positions: optional `Positions`, or the dict that its `to_dict` returns. Defaults to the
            positions of Transformer-XL. The call argument `position_encoding` overrides a clamp,
            `attention_mask` overrides `same_length`.
        pre_norm: bool. If `True`, normalisation comes first.
        residual_gate: optional str. `"gru"` replaces each residual by a `GRUGate`, as in GTrXL, and
            needs `pre_norm`. `None` means a plain sum.
        dropout: float in `[0, 1)`. Dropout rate of both sublayers' outputs and of the
            inner activations.
        variational_dropout: bool. If `True`, all positions of a row share a dropout mask.
        attention_dropout: float in `[0, 1)`. Dropout rate of attention probabilities.
        own_biases: bool. Argument of `RelativeAttention`.
        layer_norm_epsilon: float. Added to the variance in layer normalisation.
        kernel_initializer: initializer of all kernels. Defaults to a normal
            distribution of stddev 0.02.
        stateful: bool. If `True`, the block keeps its memory.
        memory_length: int. `M`, only for a stateful block.
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
            previous `M` tokens. It gets no gradient. A stateful block must not
            be given it.
        attention_mask: optional boolean tensor that broadcasts to `(B, N, T, K)`, True
            where attention is allowed. The default is a causal mask that excludes
            unfilled places of a block's own memory.
        content_bias: float tensor `(N, H)`, only with `own_biases=False`.
        position_bias: float tensor `(N, H)`, only with `own_biases=False`.
        dropout_seed: optional int32 tensor `(B, 2)` or `(2,)`, see `SeededDropout`.
        training: bool. If `True`, dropout is active.

    Returns:
        Float tensor `(B, T, D)`.

    Raises:
        ValueError: If a stateful block has no `memory_length`, is called with a
            memory, or is built without a fixed batch size.
    """

    def __init__(
        self,
        num_heads,
        head_dim,
        intermediate_dim,
        positions=None,
        pre_norm=False,
        dropout=0.0,
        variational_dropout=False,
        attention_dropout=0.0,
        own_biases=True,
        layer_norm_epsilon=1e-12,
        kernel_initializer=None,
        stateful=False,
        memory_length=0,
        residual_gate=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if residual_gate not in (None, "gru") or (residual_gate and not pre_norm):
            raise ValueError(
                '`residual_gate` must be None, or "gru" with `pre_norm=True`. '
                f"Received: residual_gate={residual_gate!r}, pre_norm={pre_norm}"
            )
        if stateful and memory_length <= 0:
            raise ValueError(
                "A block with `stateful=True` needs a positive `memory_length`. "
                f"Received: memory_length={memory_length}"
            )
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.intermediate_dim = intermediate_dim
        is_made = isinstance(positions, Positions)
        self.positions = positions if is_made else Positions.from_dict(positions or {})
        self.pre_norm = pre_norm
        self.residual_gate = residual_gate
        self.dropout = dropout
        self.variational_dropout = variational_dropout
        self.attention_dropout = attention_dropout
        self.own_biases = own_biases
        self.layer_norm_epsilon = layer_norm_epsilon
        self.kernel_initializer = normal_unless(kernel_initializer)
        self.stateful = stateful
        self.memory_length = memory_length
        self.__dict__["_state"] = ()  # hidden from Keras' tracking, see `create_state`
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
        self.attention_gate = self.feed_forward_gate = None
        if self.residual_gate is not None:
            common["kernel_initializer"] = self.kernel_initializer
            self.attention_gate = GRUGate(name="attention_gate", **common)
            self.feed_forward_gate = GRUGate(name="feed_forward_gate", **common)

    def _create_attention(self):
        arguments = {
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            "dropout": self.attention_dropout,
            "kernel_initializer": self.kernel_initializer.clone(),
            "dtype": self.dtype_policy,
            "name": "attention",
        }
        if self.positions.encoding == "transformer_xl":
            return RelativeAttention(own_biases=self.own_biases, **arguments)
        if self.positions.encoding in ("shaw", "shaw_two_terms"):
            return ShawAttention(
                num_positions=self.positions.num_positions,
                has_biases=self.positions.encoding == "shaw",
                **arguments,
            )
        return AbsoluteAttention(**arguments)

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
        if self.residual_gate is not None:
            self.attention_gate.build(inputs_shape)
            self.feed_forward_gate.build(inputs_shape)
        if self.positions.encoding == "learned":
            self.position_table = self.add_weight(
                shape=(self.positions.num_positions, hidden_dim),
                initializer=self.kernel_initializer.clone(),
                name="positions",
            )
        if self.stateful:
            if batch_size is None:
                raise ValueError(
                    "A block with `stateful=True` needs a fixed batch size, as given by "
                    f"`keras.Input(batch_shape=...)`. Received: inputs_shape={inputs_shape}"
                )
            shape = (batch_size, self.memory_length, hidden_dim)
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
    ):
        valid_length = None
        if self.stateful:
            if memory is not None:
                raise ValueError(
                    f"A block with `stateful=True` keeps its own memory. Received: memory={memory}"
                )
            memory, valid_length = read_state(self._state)
        memory_length = 0 if memory is None else memory.shape[1]
        if attention_mask is None:
            attention_mask = self.positions.mask(ops.shape(inputs)[1], memory_length, valid_length)
        position = {}
        if self.positions.encoding == "transformer_xl":
            if position_encoding is None:
                position_encoding = self.positions.sinusoids(
                    memory_length + ops.shape(inputs)[1], inputs.shape[-1], inputs.dtype
                )
            position = {
                "position_encoding": position_encoding,
                "content_bias": content_bias,
                "position_bias": position_bias,
            }
        outputs = self._transform(
            inputs, memory, attention_mask, dropout_seed, training, **position
        )
        if self.stateful:
            length = functional.next_valid_length(valid_length, memory_length, ops.shape(inputs)[1])
            write_state(self._state, [functional.next_memory(memory, inputs), length])
        return outputs

    def _transform(self, inputs, memory, attention_mask, seed, training, **position):
        if memory is not None:
            # Here, not in the attention: added positions and normalisation of the memory need a
            # gradient, but the memory itself must not get one.
            memory = ops.stop_gradient(memory)
        if self.positions.encoding == "learned":
            inputs, memory = self._add_positions(inputs, memory)
        query_inputs = inputs
        if self.pre_norm:
            query_inputs = self.attention_norm(inputs)
            if memory is not None and memory.shape[1] != 0:
                # Memory holds inputs before the norm, so its gain and offset apply to both.
                memory = self.attention_norm(ops.cast(memory, inputs.dtype))
        attended = self.attention(
            query_inputs,
            memory=memory,
            attention_mask=attention_mask,
            dropout_seed=functional.fold_seed(seed, 0),
            training=training,
            **position,
        )
        # The matrix products of gates are faster outside of compiled parts.
        part = compiled_part if self.residual_gate is None else lambda method, weights: method
        # A compiled part copies a result that it returns twice, so post norm returns one tensor.
        norm = self.feed_forward_norm if self.pre_norm else self.attention_norm
        added = part(self._add_attended, norm.weights)(inputs, attended, seed, training)
        transformed = self.feed_forward(
            added[-1], dropout_seed=functional.fold_seed(seed, 2), training=training
        )
        weights = () if self.pre_norm else self.feed_forward_norm.weights
        return part(self._add_transformed, weights)(added[0], transformed, seed, training)

    def _add_attended(self, inputs, attended, seed, training):
        """Returns the residual sum and its norm with pre norm, only its norm with post norm."""
        attended = self.attention_dropout_layer(
            attended, seed=functional.fold_seed(seed, 1), training=training
        )
        # The residual adds the inputs before their norm, so one path passes no layer.
        hidden = (self.attention_gate or ops.add)(inputs, attended)  # [B, T, D]
        if self.pre_norm:
            return hidden, self.feed_forward_norm(hidden)
        return (self.attention_norm(hidden),)

    def _add_transformed(self, hidden, transformed, seed, training):
        transformed = self.feed_forward_dropout(
            transformed, seed=functional.fold_seed(seed, 3), training=training
        )
        hidden = (self.feed_forward_gate or ops.add)(hidden, transformed)
        return hidden if self.pre_norm else self.feed_forward_norm(hidden)  # [B, T, D]

    def _add_positions(self, inputs, memory):
        """Adds positions to memory and segment, counted from the end of the segment."""
        # Added in every segment again, because the distance of remembered tokens grows.
        memory_length = 0 if memory is None else memory.shape[1]
        key_length = memory_length + ops.shape(inputs)[1]
        rows = functional.distances_to_end(key_length, self.positions.num_positions)
        positions = ops.cast(ops.take(self.position_table, rows, axis=0), inputs.dtype)  # [K, D]
        if memory_length:
            memory = ops.cast(memory, inputs.dtype) + positions[:memory_length]
        return inputs + positions[memory_length:], memory

    def reset_state(self):
        """Clears the memory of all rows of a stateful block.

        Raises:
            ValueError: If the block is not stateful or not built.
        """
        if not self.stateful or not self.built:
            raise ValueError(
                "Only a built block with `stateful=True` has a memory to reset. "
                f"Received: stateful={self.stateful}, built={self.built}"
            )
        clear_state(self._state)

    def compute_output_shape(self, inputs_shape, *args, **kwargs):
        return inputs_shape

    def get_config(self):
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in _PLAIN_OPTIONS},
            "positions": self.positions.to_dict(),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }
