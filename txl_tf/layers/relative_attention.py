"""Relative multi-head attention for Transformer-XL.

Shape letters used in this module:
  B rows, T segment length, M memory length, K = M + T key length,
  D hidden width, N heads, H head width.
"""

import keras
from keras import ops

from txl_tf import functional
from txl_tf.layers.seeded_dropout import SeededDropout


@keras.saving.register_keras_serializable(package="txl_tf")
class RelativeAttention(keras.layers.Layer):
    """Multi-head attention over a segment and its memory.

    Scores are the four terms of Dai et al. (2019), Section 3.3: (a) content
    and content, (b) content and position, (c) content bias `u`, (d) position
    bias `v`, computed as

        ((q + u) . k + relative_shift((q + v) . r)) / sqrt(H)

    where `r`, the projection of the position encoding, is computed once per
    distance and not once per pair (Appendix B).

    Args:
        num_heads: int. Number of heads `N`.
        head_dim: int. Width `H` of one head.
        dropout: float in `[0, 1)`. Rate on attention probabilities.
        own_biases: bool. Whether the layer has its own biases `u` and `v`; if
            not, they are call arguments, and several layers can share them.
        kernel_initializer: initializer of all weights, biases `u` and `v`
            included. Defaults to a normal distribution of stddev 0.02.
        **kwargs: other keyword arguments passed to `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor `(B, T, D)`. The current segment.
        position_encoding: float tensor `(K, D)`; row `j` encodes the distance
            `K - 1 - j`.
        memory: optional float tensor `(B, M, D)`. The inputs of this layer for
            the `M` tokens before the segment. No gradient flows into it.
        attention_mask: boolean tensor that broadcasts to `(B, N, T, K)`; True where
            attention is allowed.
        content_bias: float tensor `(N, H)`, without `own_biases`.
        position_bias: float tensor `(N, H)`, without `own_biases`.
        dropout_seed: optional int32 tensor `(2,)`.
        training: bool. Whether dropout is active.

    Returns:
        Float tensor `(B, T, D)`.

    Raises:
        ValueError: If `num_heads` or `head_dim` is not positive, or a bias is
            missing where the layer has none of its own.
    """

    def __init__(
        self,
        num_heads,
        head_dim,
        dropout=0.0,
        own_biases=True,
        kernel_initializer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if num_heads <= 0 or head_dim <= 0:
            raise ValueError(
                "`num_heads` and `head_dim` must be positive. "
                f"Received: num_heads={num_heads}, head_dim={head_dim}"
            )
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.dropout = dropout
        self.own_biases = own_biases
        if kernel_initializer is None:
            kernel_initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.probability_dropout = SeededDropout(
            dropout, dtype=self.dtype_policy, name="probability_dropout"
        )

    def _projection(self, units, name):
        return keras.layers.Dense(
            units,
            use_bias=False,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name=name,
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
        hidden_dim = inputs_shape[-1]
        width = self.num_heads * self.head_dim
        self.query = self._projection(width, "query")
        self.key = self._projection(width, "key")
        self.value = self._projection(width, "value")
        self.position = self._projection(width, "position")
        self.output_projection = self._projection(hidden_dim, "output")
        for projection in (self.query, self.key, self.value, self.position):
            projection.build((None, None, hidden_dim))
        self.output_projection.build((None, None, width))
        if self.own_biases:
            self.content_bias = self._bias("content_bias")
            self.position_bias = self._bias("position_bias")

    def _bias(self, name):
        return self.add_weight(
            shape=(self.num_heads, self.head_dim),
            initializer=self.kernel_initializer.clone(),
            name=name,
        )

    def _split_heads(self, tensor):
        return ops.reshape(tensor, [-1, ops.shape(tensor)[1], self.num_heads, self.head_dim])

    def call(
        self,
        inputs,
        position_encoding,
        memory=None,
        attention_mask=None,
        content_bias=None,
        position_bias=None,
        dropout_seed=None,
        training=False,
    ):
        content_bias, position_bias = self._biases(content_bias, position_bias)
        context = inputs
        if memory is not None and memory.shape[1] != 0:
            memory = ops.stop_gradient(ops.cast(memory, inputs.dtype))
            context = ops.concatenate([memory, inputs], axis=1)  # [B, K, D]
        query = self._split_heads(self.query(inputs))  # [B, T, N, H]
        key = self._split_heads(self.key(context))  # [B, K, N, H]
        value = self._split_heads(self.value(context))  # [B, K, N, H]
        position = ops.reshape(
            self.position(position_encoding), [-1, self.num_heads, self.head_dim]
        )  # [K, N, H]

        scale = self.head_dim**-0.5
        content_scores = ops.einsum("btnh,bknh->bntk", (query + content_bias) * scale, key)
        position_scores = ops.einsum("btnh,knh->bntk", (query + position_bias) * scale, position)
        scores = content_scores + functional.relative_shift(position_scores)  # [B, N, T, K]
        probabilities = self._probabilities(scores, attention_mask)
        probabilities = self.probability_dropout(
            ops.cast(probabilities, value.dtype), seed=dropout_seed, training=training
        )
        attended = ops.einsum("bntk,bknh->btnh", probabilities, value)
        width = self.num_heads * self.head_dim
        attended = ops.reshape(attended, [-1, ops.shape(inputs)[1], width])  # [B, T, N * H]
        return self.output_projection(attended)  # [B, T, D]

    def _probabilities(self, scores, attention_mask):
        scores = functional.at_least_float32(scores)
        if attention_mask is not None:
            scores = functional.mask_scores(scores, attention_mask)
        if scores.shape[-1] == 1:
            # Keras warns of a softmax over one key, but the first token has no other.
            return ops.ones_like(scores)
        return ops.softmax(scores, axis=-1)

    def _biases(self, content_bias, position_bias):
        if self.own_biases:
            return self.content_bias, self.position_bias
        if content_bias is None or position_bias is None:
            raise ValueError(
                "A layer without biases of its own needs `content_bias` and `position_bias`. "
                f"Received: content_bias={content_bias}, position_bias={position_bias}"
            )
        return (
            ops.cast(content_bias, self.compute_dtype),
            ops.cast(position_bias, self.compute_dtype),
        )

    def compute_output_shape(self, inputs_shape, *args, **kwargs):
        return inputs_shape

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            "dropout": self.dropout,
            "own_biases": self.own_biases,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }
