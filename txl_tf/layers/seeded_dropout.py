"""Dropout of all layers, whose masks depend only on a seed for each row.

Shape letters used in this module: B rows, T segment length, D hidden width.
"""

import keras
from keras import ops

from txl_tf import stateless_random
from txl_tf.imports import tensorflow as tf
from txl_tf.layers.compiled_parts import compiled_part
from txl_tf.layers.configured_layer import ConfiguredLayer


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
            `functional.row_seeds` derives the seeds of the rows 0 to `B - 1`.
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
        shift = ops.cast(32 - stateless_random.DRAWN_BITS, "uint32")
        draws = ops.cast(ops.right_shift(bits, shift), "int32")
        is_kept = draws >= stateless_random.dropout_threshold(self.rate)
        return ops.where(is_kept, inputs * (1.0 / (1.0 - self.rate)), ops.zeros_like(inputs))

    def seeds_of_rows(self, num_rows, seed=None):
        """Returns the seed of each row, int32 `(B, 2)`, from the seed of a call."""
        if seed is None:
            return drawn_row_seeds(self.seed_generator, num_rows)
        if len(seed.shape) == 1:
            seed = stateless_random.row_seeds(seed, ops.arange(num_rows, dtype="int32"))
        return seed


def drawn_row_seeds(seed_generator, num_rows):
    """Draws the seed of each row, int32 `(B, 2)`; rows of all replicas count as one batch."""
    rows = ops.arange(num_rows, dtype="int32")
    is_tensorflow = keras.backend.backend() == "tensorflow"
    if is_tensorflow and (replica := tf.distribute.get_replica_context()) is not None:
        rows = rows + replica.replica_id_in_sync_group * num_rows
    return stateless_random.row_seeds(seed_generator.next(), rows)
