"""The position-wise feed-forward layer of a decoder block.

Shape letters used in this module: B rows, T segment length, D hidden width,
F inner width.
"""

import keras

from txl_tf.layers.dropout import SeededDropout


@keras.saving.register_keras_serializable(package="txl_tf")
class FeedForward(keras.layers.Layer):
    """Two dense layers with a ReLU between them, applied to every position.

    Dropout acts on the inner activations; the one on the result belongs to
    the block, which adds the residual.

    Args:
        intermediate_dim: int. Inner width `F`.
        dropout: float in `[0, 1)`. Rate on the inner activations.
        variational_dropout: bool. Whether a mask is the same for all positions
            of a row.
        kernel_initializer: initializer of both kernels. Defaults to a normal
            distribution of stddev 0.02. Biases start at 0.
        **kwargs: other keyword arguments passed to `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor `(B, T, D)`.
        dropout_seed: optional int32 tensor `(B, 2)` or `(2,)`, see `SeededDropout`.
        training: bool. Whether dropout is active.

    Returns:
        Float tensor `(B, T, D)`.

    Raises:
        ValueError: If `intermediate_dim` is not positive.
    """

    def __init__(
        self,
        intermediate_dim,
        dropout=0.0,
        variational_dropout=False,
        kernel_initializer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if intermediate_dim <= 0:
            raise ValueError(
                "`intermediate_dim` must be positive. "
                f"Received: intermediate_dim={intermediate_dim}"
            )
        self.intermediate_dim = intermediate_dim
        self.dropout = dropout
        self.variational_dropout = variational_dropout
        if kernel_initializer is None:
            kernel_initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.inner_dropout = SeededDropout(
            dropout,
            (1,) if variational_dropout else (),
            dtype=self.dtype_policy,
            name="inner_dropout",
        )

    def _dense(self, units, activation, name):
        return keras.layers.Dense(
            units,
            activation=activation,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, inputs_shape, dropout_seed_shape=None):
        hidden_dim = inputs_shape[-1]
        self.inner = self._dense(self.intermediate_dim, "relu", "inner")
        self.outer = self._dense(hidden_dim, None, "outer")
        self.inner.build((None, None, hidden_dim))
        self.outer.build((None, None, self.intermediate_dim))

    def call(self, inputs, dropout_seed=None, training=False):
        inner = self.inner(inputs)  # [B, T, F]
        inner = self.inner_dropout(inner, seed=dropout_seed, training=training)
        return self.outer(inner)  # [B, T, D]

    def compute_output_shape(self, inputs_shape, dropout_seed_shape=None):
        return inputs_shape

    def get_config(self):
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "dropout": self.dropout,
            "variational_dropout": self.variational_dropout,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }
