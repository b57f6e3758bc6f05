"""A seed that is handed in, for Keras' random functions."""

import keras


class GivenSeed(keras.random.SeedGenerator):
    """Hands out the seed tensor it was given, and keeps no state.

    Keras' random functions take an int or a generator. With this generator
    they take a tensor, so random numbers can be a function of a step counter.

    Args:
        seed: int32 tensor `(2,)`.
    """

    def __init__(self, seed):
        # The base class would create a variable for its state.
        self._given = seed

    def next(self, ordered=True):
        """Returns the seed, the same one every time."""
        return self._given
