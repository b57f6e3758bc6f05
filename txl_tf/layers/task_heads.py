"""Heads that map the hidden states of a text to classes, numbers, choices or a span.

Shape letters used in this module: B rows, L positions of a text, D hidden width, C outputs.
"""

import keras
from keras import ops

from txl_tf.layers.configured_layer import ConfiguredLayer
from txl_tf.layers.seeded_dropout import SeededDropout

_POOLINGS = ("last", "mean")
_LOWEST = -3.4028235e38  # of float32; no softmax chooses it


def pool(hidden, padding_mask, pooling):
    """Reduces the hidden states `(..., L, D)` of each text to a vector `(..., D)`.

    `pooling` is `"last"`, the state of the last token, the only one that depends on the whole
    text, or `"mean"` of all tokens. A text without tokens gives zeros.
    """
    if pooling == "last":
        counts = ops.cumsum(ops.cast(padding_mask, "int32"), axis=-1)
        is_last = ops.logical_and(padding_mask, counts == counts[..., -1:])
        weights = ops.cast(is_last, hidden.dtype)
        return ops.sum(hidden * weights[..., None], axis=-2)  # [..., D]
    weights = ops.cast(padding_mask, "float32")
    total = ops.sum(ops.cast(hidden, "float32") * weights[..., None], axis=-2)
    count = ops.maximum(ops.sum(weights, axis=-1, keepdims=True), 1.0)
    return ops.cast(total / count, hidden.dtype)


def _mask_of(hidden, padding_mask):
    shape = ops.shape(hidden)[:-1]
    return ops.ones(shape, "bool") if padding_mask is None else ops.cast(padding_mask, "bool")


class _Head(ConfiguredLayer):
    """Dropout and a projection to `num_outputs`, in float32 for the loss."""

    _arguments: tuple[str, ...] = ("dropout", "kernel_initializer")
    _has_bias = True

    def __init__(self, num_outputs, dropout=0.1, kernel_initializer="glorot_uniform", **kwargs):
        super().__init__(**kwargs)
        self.num_outputs = num_outputs
        self.dropout = dropout
        self.feature_dropout = SeededDropout(dropout, name="dropout", dtype=self.dtype_policy)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.projection = keras.layers.Dense(
            num_outputs,
            use_bias=self._has_bias,
            kernel_initializer=self.kernel_initializer,
            name="projection",
            dtype=self.dtype_policy,
        )

    def build(self, hidden_shape, padding_mask_shape=None):
        self.projection.build(hidden_shape)
        self.built = True

    def _project(self, features, dropout_seed, training):
        shape = ops.shape(features)
        if dropout_seed is not None and len(dropout_seed.shape) > 2:
            # Dropout treats each text of a choice as a row.
            features = ops.reshape(features, (-1, *shape[dropout_seed.ndim - 1 :]))
            dropout_seed = ops.reshape(dropout_seed, (-1, 2))
        features = self.feature_dropout(features, seed=dropout_seed, training=training)
        features = ops.reshape(features, shape)
        return ops.cast(self.projection(features), "float32")


@keras.saving.register_keras_serializable(package="txl_tf")
class PooledHead(_Head):
    """Outputs of a whole text: logits of classes, or numbers of a regression.

    Args:
        num_outputs: int. Classes, or numbers.
        pooling: str. `"last"` reads the state of the last token, `"mean"` the mean
            over all tokens.
        **kwargs: `dropout` of the pooled vector, `kernel_initializer` of the projection, and
            arguments of `keras.layers.Layer`.

    Call arguments:
        hidden: float tensor `(..., L, D)`.
        padding_mask: optional bool tensor `(..., L)`, true where there is a token; by
            default there is no padding.
        dropout_seed: optional int32 tensor `(..., 2)`, a seed for each text, or `(2,)`; by
            default the layer draws one.
        training: bool. If `True`, dropout is active.

    Returns:
        Float32 tensor `(..., C)`.

    Raises:
        ValueError: If `pooling` is unknown.
    """

    _arguments = (*_Head._arguments, "num_outputs", "pooling")

    def __init__(self, num_outputs, pooling="last", **kwargs):
        super().__init__(num_outputs, **kwargs)
        if pooling not in _POOLINGS:
            raise ValueError(f"`pooling` must be one of {_POOLINGS}. Received: pooling={pooling!r}")
        self.pooling = pooling

    def call(self, hidden, padding_mask=None, dropout_seed=None, training=False):
        pooled = pool(hidden, _mask_of(hidden, padding_mask), self.pooling)
        return self._project(pooled, dropout_seed, training)


@keras.saving.register_keras_serializable(package="txl_tf")
class ChoiceHead(PooledHead):
    """Logits of a choice between `C` texts per row.

    Arguments are as in `PooledHead` with one output.

    Returns:
        Float32 tensor `(B, C)`; the lowest float32 for a text without tokens.
    """

    _arguments = (*_Head._arguments, "pooling")
    # A bias equal for all texts would not affect the choice, and its gradient would be rounding
    # error.
    _has_bias = False

    def __init__(self, pooling="last", **kwargs):
        super().__init__(1, pooling, **kwargs)

    def call(self, hidden, padding_mask=None, dropout_seed=None, training=False):
        logits = super().call(hidden, padding_mask, dropout_seed, training)
        logits = ops.squeeze(logits, axis=-1)
        is_there = ops.any(_mask_of(hidden, padding_mask), axis=-1)
        return ops.where(is_there, logits, _LOWEST)


@keras.saving.register_keras_serializable(package="txl_tf")
class SpanHead(_Head):
    """Logits of the first and the last token of an answer in the text.

    A causal model has read the question only if it stands before the passage. The last token of
    the text depends on all of them, so a span of just this token marks a text without an answer.

    Args:
        **kwargs: `dropout` of the hidden states, `kernel_initializer`, and arguments of
            `keras.layers.Layer`.

    Call arguments are the same as in `PooledHead`.

    Returns:
        Float32 tensor `(..., 2, L)`, the first tokens before the last ones; the
        lowest float32 where there is no token, which no softmax chooses.
    """

    _has_bias = False  # as in a choice, between positions

    def __init__(self, **kwargs):
        super().__init__(2, **kwargs)

    def call(self, hidden, padding_mask=None, dropout_seed=None, training=False):
        logits = ops.swapaxes(self._project(hidden, dropout_seed, training), -1, -2)  # [..., 2, L]
        mask = _mask_of(hidden, padding_mask)
        return ops.where(mask[..., None, :], logits, _LOWEST)
