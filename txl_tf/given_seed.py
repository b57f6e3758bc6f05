"""A seed that is handed in, for Keras' random functions."""

import keras
from keras import ops


class GivenSeed(keras.random.SeedGenerator):
    """Hands out the seed tensor it was given, and keeps no state.

    Keras' random functions take an int or a generator. With this generator
    they take a tensor, so random numbers can be a function of a step counter.

    Args:
        seed: int32 tensor `(2,)`.
    """

    def __init__(self, seed):
        # The base class would create a variable for its state.
        # Keys of JAX are unsigned; the other backends take signed numbers as they are.
        self._given = ops.cast(seed, "uint32") if keras.backend.backend() == "jax" else seed

    def next(self, ordered=True):
        """Returns the seed, the same one every time."""
        return self._given
