"""Dropout whose mask is a function of a seed that is handed in."""

import keras
from keras import ops

from txl_tf.given_seed import GivenSeed


@keras.saving.register_keras_serializable(package="txl_tf")
class SeededDropout(keras.layers.Layer):
    """Dropout that draws from a given seed, or from its own generator.

    Under `tf.distribute` Keras' own dropout draws the same mask on every
    replica, and its hidden generator makes a repeated step differ. With a seed
    that is folded with step and replica, masks differ by replica and repeat
    exactly.

    Args:
        rate: float in `[0, 1)`. Fraction of the inputs set to 0; the others
            are scaled by `1 / (1 - rate)`.
        shared_axes: ints. Axes along which the mask is the same; axis 1 of
            `(B, T, D)` makes it variational dropout (Gal and Ghahramani, 2016).
        seed: optional int. Seed of the layer's own generator, which is used
            where no seed is handed in, as in `fit`.
        **kwargs: other keyword arguments passed to `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor of any shape.
        seed: optional int32 tensor `(2,)`.
        training: bool. Whether dropout is active.

    Returns:
        Float tensor of the shape of `inputs`.
    """

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
        generator = self.seed_generator if seed is None else GivenSeed(seed)
        if not self.shared_axes:
            return keras.random.dropout(inputs, self.rate, seed=generator)
        noise_shape = [
            1 if axis in self.shared_axes else size for axis, size in enumerate(ops.shape(inputs))
        ]
        return keras.random.dropout(inputs, self.rate, noise_shape=noise_shape, seed=generator)

    def compute_output_shape(self, inputs_shape, seed_shape=None):
        return inputs_shape

    def get_config(self):
        return {
            **super().get_config(),
            "rate": self.rate,
            "shared_axes": self.shared_axes,
            "seed": self.seed,
        }
