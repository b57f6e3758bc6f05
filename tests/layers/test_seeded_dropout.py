import math

import numpy as np
import pytest
from keras import ops

from tests import reference
from tests.layer_checks import check_layer
from txl_tf import functional
from txl_tf.layers.seeded_dropout import SeededDropout

ONES = np.ones((64, 1000), "float32")


def seed_of(first, second):
    return ops.convert_to_tensor([first, second], "int32")


def mask_of(layer, seed):
    return ops.convert_to_numpy(layer(ONES, seed=seed, training=True)) != 0.0


def test_basics():
    check_layer(
        SeededDropout,
        init_kwargs={"rate": 0.4, "seed": 3},
        inputs={"inputs": ONES[:2, :3]},
        expected_output_shape=(2, 3),
        num_weights=0,
    )


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_keeps_the_stated_fraction_and_the_expectation(rate):
    outputs = ops.convert_to_numpy(SeededDropout(rate)(ONES, seed=seed_of(1, 2), training=True))
    kept = np.mean(outputs != 0.0)
    # Five standard deviations of a binomial mean.
    bound = 5 * math.sqrt(rate * (1 - rate) / ONES.size)
    assert abs(kept - (1 - rate)) < bound
    np.testing.assert_allclose(outputs[outputs != 0.0], 1 / (1 - rate), rtol=1e-6)
    assert abs(outputs.mean() - 1.0) < bound / (1 - rate)


def test_same_seed_gives_the_same_mask_in_every_layer():
    first, second = SeededDropout(0.5), SeededDropout(0.5)
    np.testing.assert_array_equal(mask_of(first, seed_of(5, 6)), mask_of(first, seed_of(5, 6)))
    np.testing.assert_array_equal(mask_of(first, seed_of(5, 6)), mask_of(second, seed_of(5, 6)))


@pytest.mark.parametrize("other", [(5, 7), (6, 6), (6, 5)])
def test_another_seed_gives_an_independent_mask(other):
    layer = SeededDropout(0.5)
    agreement = np.mean(mask_of(layer, seed_of(5, 6)) == mask_of(layer, seed_of(*other)))
    assert abs(agreement - 0.5) < 0.01


def test_masks_of_all_sites_of_one_seed_are_independent():
    layer = SeededDropout(0.5)
    masks = [mask_of(layer, functional.fold_seed(seed_of(5, 6), site)) for site in range(12)]
    for index, mask in enumerate(masks):
        for other in masks[:index]:
            assert abs(np.mean(mask == other) - 0.5) < 0.01


def test_inactive_without_training_and_at_rate_zero():
    seed = seed_of(1, 2)
    assert reference.max_difference(SeededDropout(0.5)(ONES, seed=seed), ONES) == 0.0
    assert reference.max_difference(SeededDropout(0.0)(ONES, seed=seed, training=True), ONES) == 0.0


def test_without_a_given_seed_every_call_draws_anew_and_a_set_seed_repeats():
    layer, twin = SeededDropout(0.5, seed=11), SeededDropout(0.5, seed=11)
    first, second = mask_of(layer, None), mask_of(layer, None)
    assert np.mean(first == second) < 0.6
    np.testing.assert_array_equal(mask_of(twin, None), first)


def test_a_given_seed_leaves_the_own_generator_alone():
    layer, twin = SeededDropout(0.5, seed=11), SeededDropout(0.5, seed=11)
    mask_of(layer, seed_of(1, 2))
    np.testing.assert_array_equal(mask_of(layer, None), mask_of(twin, None))


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_rate_out_of_range_is_refused(rate):
    with pytest.raises(ValueError, match=r"`rate` must be in \[0, 1\)\. Received: rate="):
        SeededDropout(rate)
