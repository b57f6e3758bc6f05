"""Dropout whose mask is computed from an explicit seed."""

import keras
from keras import ops

from txl_tf import functional

_RESOLUTION = 2**24  # what a rate is rounded to


@keras.saving.register_keras_serializable(package="txl_tf")
class SeededDropout(keras.layers.Layer):
    """Dropout that draws from a given seed, or from its own generator.

    The mask of a row is a hash of the row's seed and the place in the row, see
    `functional.random_bits`. Where seeds belong to rows of the global batch, it
    does not matter on how many replicas, in how many parts, in which order or
    on which backend they are computed. Under `tf.distribute` Keras' own dropout
    would draw the same mask on every replica, and its hidden generator makes a
    repeated step differ.

    Args:
        rate: float in `[0, 1)`. Fraction of the inputs set to 0; the others
            are scaled by `1 / (1 - rate)`.
        shared_axes: ints. Axes along which the mask is the same; axis 1 of
            `(B, T, D)` makes it variational dropout (Gal and Ghahramani, 2016).
            Not axis 0, the rows.
        seed: optional int. Seed of the layer's own generator, which is used
            where no seed is handed in, as in `fit`.
        **kwargs: other keyword arguments passed to `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor `(B, ...)`.
        seed: optional int32 tensor `(B, 2)`, a seed per row, or `(2,)`, which
            stands for `functional.row_seeds` of it and the rows 0 to `B - 1`.
        training: bool. Whether dropout is active.

    Returns:
        Float tensor of the shape of `inputs`.

    Raises:
        ValueError: If `rate` is not in `[0, 1)`, or rows would share a mask.
    """

    def __init__(self, rate, shared_axes=(), seed=None, **kwargs):
        super().__init__(**kwargs)
        if not 0.0 <= rate < 1.0:
            raise ValueError(f"`rate` must be in [0, 1). Received: rate={rate}")
        if any(axis <= 0 for axis in shared_axes):
            raise ValueError(f"`shared_axes` must be positive. Received: shared_axes={shared_axes}")
        self.rate = rate
        self.shared_axes = tuple(shared_axes)
        self.seed = seed
        if rate > 0:
            self.seed_generator = keras.random.SeedGenerator(seed)
        self.built = True

    def call(self, inputs, seed=None, training=False):
        if not training or self.rate == 0:
            return inputs
        kept = self._mask(ops.shape(inputs), self.seed_generator.next() if seed is None else seed)
        return ops.where(kept, inputs * (1.0 / (1.0 - self.rate)), ops.zeros_like(inputs))

    def _mask(self, shape, seed):
        """Which elements stay: bool tensor that broadcasts to `shape`."""
        if len(seed.shape) == 1:
            seed = functional.row_seeds(seed, ops.arange(shape[0], dtype="int32"))
        sizes = [1 if axis in self.shared_axes else shape[axis] for axis in range(1, len(shape))]
        bits = functional.random_bits(seed, sizes)
        drawn = ops.cast(ops.right_shift(bits, ops.cast(8, "uint32")), "int32")  # 24 bits
        return drawn >= round(self.rate * _RESOLUTION)

    def compute_output_shape(self, inputs_shape, seed_shape=None):
        return inputs_shape

    def get_config(self):
        return {
            **super().get_config(),
            "rate": self.rate,
            "shared_axes": self.shared_axes,
            "seed": self.seed,
        }
