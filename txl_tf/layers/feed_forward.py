"""Feed-forward layer and gate of a decoder block, with the dropout that all layers use.

Shape letters used in this module: B rows, T segment length, D hidden width,
F inner width.
"""

import keras
from keras import ops

from txl_tf import functional, stateless_random
from txl_tf.imports import tensorflow as tf
from txl_tf.layers.compiled_parts import compiled_part


class ConfiguredLayer(keras.layers.Layer):
    """Base class of layers that keep the arguments of their constructor as attributes."""

    _arguments: tuple[str, ...] = ()
    """Names of the arguments that `keras.layers.Layer` does not have."""

    def get_config(self):
        serialize = keras.saving.serialize_keras_object
        arguments = {name: serialize(getattr(self, name)) for name in self._arguments}
        return {**super().get_config(), **arguments}


@keras.saving.register_keras_serializable(package="txl_tf")
class SeededDropout(ConfiguredLayer):
    """Dropout that draws from a given seed, or from its own generator.

    The mask of a row is a hash of the row's seed and the index in the row, see
    `stateless_random.random_bits`. It does not depend on the number of replicas or parts, on the
    order of rows, or on the backend. Under `tf.distribute` Keras' own dropout would draw the same
    mask on every replica, and its hidden generator makes a repeated step differ.

    Args:
        rate: float in `[0, 1)`. Fraction of the inputs set to 0; the others
            are scaled by `1 / (1 - rate)`.
        shared_axes: ints. Axes along which the mask is the same, not 0. Axis 1 of `(B, T, D)`
            makes it variational dropout (Gal and Ghahramani, 2016).
        seed: optional int. Seed for calls without one, as in `fit`.
        **kwargs: other keyword arguments passed to `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor `(B, ...)`.
        seed: optional int32 tensor `(B, 2)`, a seed per row, or `(2,)`, from which
            `functional.row_seeds` makes those for the rows 0 to `B - 1`.
        training: bool. If `True`, dropout is active.

    Returns:
        Float tensor of the shape of `inputs`.

    Raises:
        ValueError: If `rate` is not in `[0, 1)`.
    """

    _arguments = ("rate", "shared_axes", "seed")

    def __init__(self, rate, shared_axes=(), seed=None, **kwargs):
        super().__init__(**kwargs)
        if not 0.0 <= rate < 1.0:
            raise ValueError(f"`rate` must be in [0, 1). Received: rate={rate}")
        self.rate = rate
        self.shared_axes = tuple(shared_axes)
        self.seed = seed
        if rate > 0:
            self.seed_generator = keras.random.SeedGenerator(seed)
        self.built = True

    def call(self, inputs, seed=None, training=False):
        if not training or self.rate == 0:
            return inputs
        seeds = self.seeds_of_rows(ops.shape(inputs)[0], seed)
        return compiled_part(self._drop)(inputs, seeds)

    def _drop(self, inputs, seeds):
        shape = ops.shape(inputs)
        sizes = [1 if axis in self.shared_axes else shape[axis] for axis in range(1, len(shape))]
        bits = stateless_random.random_bits(seeds, sizes)
        unused = ops.cast(32 - stateless_random.DRAWN_BITS, "uint32")
        draws = ops.cast(ops.right_shift(bits, unused), "int32")
        is_kept = draws >= stateless_random.dropout_threshold(self.rate)
        return ops.where(is_kept, inputs * (1.0 / (1.0 - self.rate)), ops.zeros_like(inputs))

    def seeds_of_rows(self, num_rows, seed=None):
        """Returns the seed of each row, int32 `(B, 2)`, from the seed of a call."""
        if seed is None:
            return drawn_row_seeds(self.seed_generator, num_rows)
        if len(seed.shape) == 1:
            seed = functional.row_seeds(seed, ops.arange(num_rows, dtype="int32"))
        return seed


def drawn_row_seeds(seed_generator, num_rows):
    """Draws the seed of each row, int32 `(B, 2)`; replicas draw others, as in one larger batch."""
    rows = ops.arange(num_rows, dtype="int32")
    is_tensorflow = keras.backend.backend() == "tensorflow"
    if is_tensorflow and (replica := tf.distribute.get_replica_context()) is not None:
        rows = rows + replica.replica_id_in_sync_group * num_rows
    return functional.row_seeds(seed_generator.next(), rows)


def normal_unless(initializer, stddev=0.02):
    """Returns an initializer as an object; without one a normal distribution."""
    if initializer is None:
        initializer = keras.initializers.RandomNormal(stddev=stddev)
    return keras.initializers.get(initializer)


def projection_of(layer, units, name, input_dim, use_bias=False):
    """Returns a built `Dense` with the initializer and the dtypes of the layer it is part of."""
    dense = keras.layers.Dense(
        units,
        use_bias=use_bias,
        kernel_initializer=layer.kernel_initializer.clone(),
        dtype=layer.dtype_policy,
        name=name,
    )
    dense.build((None, None, input_dim))
    return dense


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

    The bias `b` starts at 2, so that the result is near `x` at first. The kernels of `y` are side
    by side in one, as are the kernels of `x` without `U_h`.

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
