"""Inputs and weights of tests of layers: random numbers, masks and seeds of dropout."""

import numpy as np
from keras import ops

from txl_tf import stateless_random
from txl_tf.layers.visible_keys import VisibleKeys


def drawn_seeds(monkeypatch):
    """Returns a list; every dropout mask that is drawn later appends its seeds."""
    seeds = []
    draw = stateless_random.random_bits

    def spy(row_seeds, sizes):
        seeds.append(tuple(ops.convert_to_numpy(row_seeds).ravel().tolist()))
        return draw(row_seeds, sizes)

    monkeypatch.setattr("txl_tf.stateless_random.random_bits", spy)
    return seeds


def causal_mask(num_tokens, memory_length, valid_length=None, farthest=None):
    """Returns the keys that each query may attend to, bool `(B, 1, T, K)`."""
    visible = VisibleKeys(
        num_tokens=num_tokens,
        memory_length=memory_length,
        valid_length=valid_length,
        farthest=farthest,
    )
    return visible.mask_over_keys()


def random(*shape, seed=0):
    """Draws float32 numbers of a normal distribution."""
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def built(layer, width):
    """Builds a layer for inputs of a width, and gives it large random weights."""
    layer.build((None, None, width))
    randomize_weights(layer)
    return layer


def randomize_weights(layer, stddev=0.4, seed=7):
    """Sets all trainable weights to large random numbers, and gains to numbers around 1.

    Initial weights hide faults: biases are 0, gains are 1, and scores of almost 0 make every
    attention uniform. Two layers of one shape get equal weights.
    """
    rng = np.random.default_rng(seed)
    for weight in layer.trainable_variables:
        mean = 1.0 if weight.name == "gamma" else 0.0
        weight.assign(rng.normal(mean, stddev, size=weight.shape))
