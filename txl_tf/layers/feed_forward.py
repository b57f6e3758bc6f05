"""Feed-forward layer and gate of a decoder block.

Shape letters used in this module: B rows, T segment length, D hidden width,
F inner width.
"""

import keras
from keras import ops

from txl_tf.layers.compiled_parts import compiled_part
from txl_tf.layers.configured_layer import ConfiguredLayer, normal_unless, projection_of
from txl_tf.layers.seeded_dropout import SeededDropout


@keras.saving.register_keras_serializable(package="txl_tf")
class FeedForward(ConfiguredLayer):
    """Two dense layers with a ReLU between them, applied to every position.

    Dropout acts on the inner activations. The block applies dropout to the result and adds the
    residual.

    Args:
        intermediate_dim: int. Inner width `F`.
        dropout: float in `[0, 1)`. Rate on the inner activations.
        variational_dropout: bool. If `True`, a dropout mask is the same for all positions of a
            row.
        kernel_initializer: initializer of both kernels. Defaults to a normal
            distribution of stddev 0.02. Biases start at 0.
        **kwargs: other keyword arguments passed to `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor `(B, T, D)`.
        dropout_seed: optional int32 tensor `(B, 2)` or `(2,)`, see `SeededDropout`.
        training: bool. If `True`, dropout is active.

    Returns:
        Float tensor `(B, T, D)`.
    """

    _arguments = ("intermediate_dim", "dropout", "variational_dropout", "kernel_initializer")

    def __init__(
        self,
        intermediate_dim,
        dropout=0.0,
        variational_dropout=False,
        kernel_initializer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.intermediate_dim = intermediate_dim
        self.dropout = dropout
        self.variational_dropout = variational_dropout
        self.kernel_initializer = normal_unless(kernel_initializer)
        self.inner_dropout = SeededDropout(
            dropout,
            (1,) if variational_dropout else (),
            dtype=self.dtype_policy,
            name="inner_dropout",
        )

    def build(self, inputs_shape, dropout_seed_shape=None):
        inner, outer = self.intermediate_dim, inputs_shape[-1]
        self.inner = projection_of(self, inner, "inner", outer, use_bias=True)
        self.outer = projection_of(self, outer, "outer", inner, use_bias=True)

    def call(self, inputs, dropout_seed=None, training=False):
        if training:
            inner = compiled_part(self._activate)(self.inner(inputs), dropout_seed, training)
            return self.outer(inner)  # [B, T, D]
        # On a plain matrix of rows, TensorFlow fuses bias and ReLU into the product.
        rows = ops.reshape(inputs, [-1, self.outer.units])
        outputs = self.outer(ops.relu(self.inner(rows)))
        return ops.reshape(outputs, [*ops.shape(inputs)[:-1], self.outer.units])

    def _activate(self, inner, dropout_seed, training):
        inner = ops.relu(inner)  # [B, T, F]
        return self.inner_dropout(inner, seed=dropout_seed, training=training)


@keras.saving.register_keras_serializable(package="txl_tf")
class GRUGate(ConfiguredLayer):
    """Gate of GTrXL in the place of a residual connection (Parisotto et al., 2019).

    The inputs `x` of a layer and its outputs `y` after a ReLU give, in Section 3.2 of
    https://arxiv.org/abs/1910.06764,

        r = sigmoid(W_r y + U_r x)
        z = sigmoid(W_z y + U_z x - b)
        h = tanh(W_h y + U_h (r * x))
        x + z * (h - x)

    The bias `b` starts at 2, so that the result is near `x` at first. The three kernels of `y` are
    one matrix, and so are `U_r` and `U_z`.

    Args:
        kernel_initializer: initializer of all kernels. Defaults to a normal
            distribution of stddev 0.02.
        **kwargs: other keyword arguments passed to `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor `(B, T, D)`.
        outputs: float tensor `(B, T, D)`, before the ReLU.

    Returns:
        Float tensor `(B, T, D)`.
    """

    _arguments = ("kernel_initializer",)

    def __init__(self, kernel_initializer=None, **kwargs):
        super().__init__(**kwargs)
        self.kernel_initializer = normal_unless(kernel_initializer)

    def build(self, inputs_shape, outputs_shape=None):
        width = inputs_shape[-1]
        self.of_outputs = projection_of(self, 3 * width, "of_outputs", width)
        self.of_inputs = projection_of(self, 2 * width, "of_inputs", width)
        self.of_reset = projection_of(self, width, "of_reset", width)
        self.bias = self.add_weight(
            shape=(width,), initializer=keras.initializers.Constant(2.0), name="bias"
        )

    def call(self, inputs, outputs):
        of_outputs = self.of_outputs(ops.relu(outputs))
        reset, update, candidate = ops.split(of_outputs, 3, axis=-1)
        reset_of_inputs, update_of_inputs = ops.split(self.of_inputs(inputs), 2, axis=-1)
        reset = ops.sigmoid(reset + reset_of_inputs)
        update = ops.sigmoid(update + update_of_inputs - ops.cast(self.bias, inputs.dtype))
        candidate = ops.tanh(candidate + self.of_reset(reset * inputs))
        return inputs + update * (candidate - inputs)
