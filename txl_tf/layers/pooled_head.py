"""Head that maps the hidden states of a text to classes or numbers.

Shape letters used in this module: B rows, L positions of a text, D hidden width, C outputs.
"""

import keras
from keras import ops

from txl_tf.layers.configured_layer import ConfiguredLayer
from txl_tf.layers.seeded_dropout import SeededDropout

_POOLINGS = ("last", "mean")


@keras.saving.register_keras_serializable(package="txl_tf")
class PooledHead(ConfiguredLayer):
    """Outputs of a whole text: logits of classes, or numbers of a regression.

    The hidden states of a text are pooled to a vector. Dropout and a projection follow. A text
    without tokens gives a vector of zeros.

    Args:
        num_outputs: int. Classes, or numbers.
        pooling: str. `"last"` reads the state of the last token, the only one that depends on the
            whole text, `"mean"` the mean over all tokens.
        dropout: float in `[0, 1)`. Dropout rate of the pooled vector.
        kernel_initializer: initializer of the projection's kernel.
        **kwargs: other keyword arguments passed to `keras.layers.Layer`.

    Call arguments:
        hidden: float tensor `(B, L, D)`.
        padding_mask: optional bool tensor `(B, L)`, true where there is a token; by
            default there is no padding.
        dropout_seed: optional int32 tensor `(B, 2)`, a seed for each text, or `(2,)`; by
            default the layer draws one.
        training: bool. If `True`, dropout is active.

    Returns:
        Float32 tensor `(B, C)`.

    Raises:
        ValueError: If `pooling` is unknown.
    """

    _arguments = ("num_outputs", "pooling", "dropout", "kernel_initializer")

    def __init__(
        self,
        num_outputs,
        pooling="last",
        dropout=0.1,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        if pooling not in _POOLINGS:
            raise ValueError(f"`pooling` must be one of {_POOLINGS}. Received: pooling={pooling!r}")
        self.num_outputs = num_outputs
        self.pooling = pooling
        self.dropout = dropout
        self.feature_dropout = SeededDropout(dropout, name="dropout", dtype=self.dtype_policy)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.projection = keras.layers.Dense(
            num_outputs,
            kernel_initializer=self.kernel_initializer,
            name="projection",
            dtype=self.dtype_policy,
        )

    def build(self, hidden_shape, padding_mask_shape=None):
        self.projection.build(hidden_shape)
        self.built = True

    def call(self, hidden, padding_mask=None, dropout_seed=None, training=False):
        if padding_mask is None:
            padding_mask = ops.ones(ops.shape(hidden)[:-1], "bool")
        features = self._pool(hidden, ops.cast(padding_mask, "bool"))
        features = self.feature_dropout(features, seed=dropout_seed, training=training)
        return ops.cast(self.projection(features), "float32")

    def _pool(self, hidden, padding_mask):
        """Reduces the hidden states of each text to a vector, `(B, D)`."""
        if self.pooling == "last":
            counts = ops.cumsum(ops.cast(padding_mask, "int32"), axis=-1)
            is_last = ops.logical_and(padding_mask, counts == counts[:, -1:])
            weights = ops.cast(is_last, hidden.dtype)
            return ops.sum(hidden * weights[..., None], axis=-2)
        weights = ops.cast(padding_mask, "float32")
        total = ops.sum(ops.cast(hidden, "float32") * weights[..., None], axis=-2)
        count = ops.maximum(ops.sum(weights, axis=-1, keepdims=True), 1.0)
        return ops.cast(total / count, hidden.dtype)
