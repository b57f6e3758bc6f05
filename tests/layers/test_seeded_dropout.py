"""Dropout whose masks are a function of the seed: rate, independence, XLA."""

import math

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from txl_tf import functional, stateless_random
from txl_tf.layers.seeded_dropout import SeededDropout

ONES = np.ones((64, 1000), "float32")
BLOCK = np.ones((8, 3, 40, 50), "float32")  # rows, heads, queries, keys
PLACES = [3, 0, 7, 100, 2**20, 5, 6, 1]


def seed_of(first, second):
    return ops.convert_to_tensor([first, second], "int32")


def mask_of(layer, seed, inputs=ONES):
    return ops.convert_to_numpy(layer(inputs, seed=seed, training=True)) != 0.0


def seeds_of(places, first=5, second=6):
    return functional.row_seeds(seed_of(first, second), ops.convert_to_tensor(places, "int32"))


def correlation(one, other):
    return np.corrcoef(one.ravel(), other.ravel())[0, 1]


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_keeps_the_stated_fraction_and_the_expectation(rate):
    outputs = ops.convert_to_numpy(SeededDropout(rate)(ONES, seed=seed_of(1, 2), training=True))
    kept = np.mean(outputs != 0.0)
    # Five standard deviations of a binomial mean.
    bound = 5 * math.sqrt(rate * (1 - rate) / ONES.size)
    assert abs(kept - (1 - rate)) < bound
    np.testing.assert_allclose(outputs[outputs != 0.0], 1 / (1 - rate), rtol=1e-6)
    assert abs(outputs.mean() - 1.0) < bound / (1 - rate)


def test_without_a_seed_of_the_call_every_call_draws_again_and_a_fixed_seed_repeats():
    layer, twin = SeededDropout(0.5, seed=11), SeededDropout(0.5, seed=11)
    first, second = mask_of(layer, None), mask_of(layer, None)
    assert np.mean(first == second) < 0.6
    np.testing.assert_array_equal(mask_of(twin, None), first)


def test_graph_and_compiled_masks_equal_eager_ones():
    layer, seeds = SeededDropout(0.3), seeds_of(PLACES)
    expected = layer(BLOCK, seed=seeds, training=True)

    def drop(inputs, seeds):
        return layer(inputs, seed=seeds, training=True)

    unknown = [tf.TensorSpec([None] * 4), tf.TensorSpec([None, 2], tf.int32)]
    for compiled in (
        tf.function(drop, input_signature=unknown),
        tf.function(drop, jit_compile=True),
    ):
        outputs = compiled(tf.constant(BLOCK), seeds)
        np.testing.assert_array_equal(outputs, expected)


def test_masks_of_rows_steps_and_sites_are_uncorrelated():
    """Also of seeds that are merely numbered, and of places in a long stream of rows."""
    layer = SeededDropout(0.5)
    masks = list(mask_of(layer, seeds_of(range(20)), ONES[:20]))
    for first, second in [(6, 6), (7, 6), (5, 7), (5, 8), (-5, 6), (0, 0), (2**31 - 1, -(2**31))]:
        masks.append(mask_of(layer, seeds_of([3], first, second), ONES[:1]))
    for site in (1, 2, 8, 97):
        masks.append(mask_of(layer, stateless_random.fold_seed(seeds_of([3]), site), ONES[:1]))
    for index, mask in enumerate(masks):
        for other in masks[:index]:
            # Five standard deviations, of some 500 pairs.
            assert abs(correlation(mask, other)) < 5 / math.sqrt(mask.size)


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_rates_out_of_range_are_refused(rate):
    with pytest.raises(ValueError, match=r"`rate` must be .*Received: "):
        SeededDropout(rate)
