"""Shift, masks, encodings and seeds against formulas in plain Python."""

import keras
import numpy as np
import pytest
from keras import ops

from tests import reference
from tests.layer_checks import causal_mask
from txl_tf import functional, stateless_random

FIRST_BITS = [3831238515, 645351235, 3893462067, 1268351527]  # of the seed (1, 2)
LENGTHS = [(1, 1), (1, 2), (2, 2), (1, 6), (2, 3), (3, 3), (4, 9), (5, 6), (7, 7), (8, 16)]


def picture(mask):
    """One line per query: x where it may look, . where not."""
    rows = ops.convert_to_numpy(mask).astype(int)
    return ["".join(".x"[each] for each in row) for row in rows]


@pytest.mark.parametrize(("segment_length", "key_length"), LENGTHS)
def test_relative_shift_moves_every_score_to_its_key(segment_length, key_length):
    shape = (2, 3, segment_length, key_length)
    scores = np.random.default_rng(0).normal(size=shape).astype("float32")
    shifted = ops.convert_to_numpy(functional.relative_shift(scores))
    assert shifted.shape == shape
    memory_length = key_length - segment_length
    for row, head, query, key in np.ndindex(*shape):
        distance = memory_length + query - key
        if distance < 0:
            continue  # the future: hidden by the mask, whatever stands there
        column = key_length - 1 - distance
        assert shifted[row, head, query, key] == scores[row, head, query, column]


@pytest.mark.parametrize(("segment_length", "key_length"), LENGTHS)
def test_a_mask_over_distances_hides_its_keys_after_the_shift(segment_length, key_length):
    allowed = np.random.default_rng(0).random((2, 3, segment_length, key_length)) < 0.5
    scores = functional.mask_over_distances(allowed, "float32")
    over_keys = ops.convert_to_numpy(functional.shift_padded(scores))
    assert np.array_equal(over_keys, np.where(allowed, 0.0, np.float32(functional.MASKED_SCORE)))


def test_a_mask_shows_the_past_the_filled_memory_and_with_same_length_m_keys_before():
    assert picture(causal_mask(3, 0)[0, 0]) == ["x..", "xx.", "xxx"]
    same_length = causal_mask(3, 2, farthest=2)
    assert picture(same_length[0, 0]) == ["xxx..", ".xxx.", "..xxx"]
    mask = causal_mask(2, 2, ops.convert_to_tensor([0, 1, 2], "int32"))
    assert tuple(mask.shape) == (3, 1, 2, 4)
    pictures = [picture(of_row[0]) for of_row in mask]
    assert pictures == [["..x.", "..xx"], [".xx.", ".xxx"], ["xxx.", "xxxx"]]


@pytest.mark.parametrize("clamp_length", [None, 1, 4, 100])
@pytest.mark.parametrize(("key_length", "hidden_dim"), [(1, 2), (7, 8), (40, 6)])
def test_encoding_follows_the_formula(key_length, hidden_dim, clamp_length):
    encoding = functional.relative_positional_encoding(key_length, hidden_dim, clamp_length)
    encoding = ops.convert_to_numpy(encoding)
    assert encoding.dtype == np.float32
    for row in range(key_length):
        expected = reference.sinusoid(key_length - 1 - row, hidden_dim, clamp_length)
        assert reference.max_difference(encoding[row], expected) <= 1e-5


def test_encoding_of_far_distances_in_half_precision_is_rounded_only_once():
    """Angles in bfloat16 could not tell distance 1001 from 1000."""
    half = functional.relative_positional_encoding(1600, 8, dtype="bfloat16")
    full = functional.relative_positional_encoding(1600, 8)
    assert keras.backend.standardize_dtype(half.dtype) == "bfloat16"
    assert reference.max_difference(ops.cast(half, "float32"), full) <= 2**-8
    exact = [reference.sinusoid(1599 - row, 8) for row in range(1600)]
    assert reference.max_difference(full, exact) <= 2e-4


@pytest.mark.parametrize("axis", [1, 2, 3])
@pytest.mark.parametrize("num_kept", [None, 2, (0, 3, 1)])
def test_last_positions_end_where_each_row_ends(axis, num_kept):
    shape, memory_length, num_new = [3, 2, 2, 2], 4, 3
    shape[axis] = memory_length + num_new
    tensor = np.random.default_rng(0).normal(size=shape).astype("float32")
    lengths = None if num_kept is None else ops.convert_to_tensor(num_kept, "int32")
    last = functional.last_positions(tensor, axis, lengths, memory_length)
    counts = np.broadcast_to(num_new if num_kept is None else num_kept, (3,))
    for row, count, one in zip(tensor, counts, last, strict=True):
        expected = np.take(row, np.arange(count, count + memory_length), axis=axis - 1)
        np.testing.assert_array_equal(one, expected)


def mixed(number):
    """The hash of one 32-bit number, in plain integers."""
    number ^= number >> 16
    number = number * 0x7FEB352D % 2**32
    number ^= number >> 15
    number = number * 0x846CA68B % 2**32
    return number ^ number >> 16


def hashed(first, second, place):
    """The numbers of `random_bits`, in plain integers."""
    first, second = first % 2**32, second % 2**32
    first_key = mixed((first + mixed((second + 0x9E3779B9) % 2**32)) % 2**32)
    second_key = mixed((second + mixed((first + 0x6A09E667) % 2**32)) % 2**32)
    return mixed(mixed((first_key + place) % 2**32) ^ second_key)


def test_random_bits_are_the_hash_of_seed_and_place():
    """Every backend draws these numbers, and every later version must, too."""
    seeds = [[0, 0], [1, 2], [-1, 7], [2**31 - 1, -(2**31)]]
    bits = ops.convert_to_numpy(
        stateless_random.random_bits(ops.convert_to_tensor(seeds, "int32"), [2, 3, 4])
    )
    assert bits.dtype == np.uint32
    for row, seed in enumerate(seeds):
        for place, drawn in enumerate(bits[row].ravel().tolist()):
            assert drawn == hashed(*seed, place)
    assert bits[1, 0, 0].tolist() == FIRST_BITS


def test_fold_seed_is_distinct_by_site_and_passes_none_on():
    """Also from the sites of the seeds with the next numbers."""
    folded = {
        tuple(ops.convert_to_numpy(stateless_random.fold_seed(ops.convert_to_tensor(seed), site)))
        for seed in np.array([[3, 4], [4, 4], [5, 4], [3, 5]], "int32")
        for site in range(50)
    }
    assert len(folded) == 4 * 50
    assert stateless_random.fold_seed(None, 3) is None


def test_the_seed_of_a_row_does_not_depend_on_the_rows_beside_it_and_folds_like_one_seed():
    seed, rows = ops.convert_to_tensor([3, 4], "int32"), np.arange(2000, dtype="int32")
    seeds = ops.convert_to_numpy(stateless_random.row_seeds(seed, rows))
    assert seeds.shape == (2000, 2)
    assert seeds.dtype == np.int32
    assert len(set(seeds[:, 1])) == 2000
    assert np.array_equal(stateless_random.row_seeds(seed, rows[1500:1400:-1]), seeds[1500:1400:-1])
    folded = stateless_random.fold_seed(stateless_random.row_seeds(seed, rows), 5)
    assert np.array_equal(
        folded, stateless_random.row_seeds(stateless_random.fold_seed(seed, 5), rows)
    )
    other = ops.convert_to_tensor([3, 5], "int32")
    assert not set(seeds[:, 1]) & set(
        ops.convert_to_numpy(stateless_random.row_seeds(other, rows))[:, 1]
    )


def test_common_seed_is_the_same_for_all_rows_and_differs_by_seed_and_site():
    """Else what rows share would be drawn once for all steps, which count in the second number."""
    seed = ops.convert_to_tensor([3, 4], "int32")
    expected = ops.convert_to_numpy(stateless_random.common_seed(seed))
    assert expected.tolist() == [-646029612, 0]
    for places in ([0, 1], [7], [9, 8]):
        seeds = stateless_random.row_seeds(seed, np.array(places, "int32"))
        assert np.array_equal(stateless_random.common_seed(seeds), expected)
        assert not np.array_equal(
            stateless_random.common_seed(stateless_random.fold_seed(seeds, 1)), expected
        )
    assert stateless_random.common_seed(None) is None
    seeds = np.array([(first, second) for first in (3, 4, -7) for second in range(500)], "int32")
    common = {int(stateless_random.common_seed(seed)[0]) for seed in seeds}
    assert len(common) == len(seeds)


def test_negative_log_likelihood_of_impossible_targets_is_not_clipped():
    """A floor on probabilities would cap the loss near 16 nats."""
    nll = functional.negative_log_likelihood(np.array([[0.0, 500.0]], "float32"), np.array([0]))
    assert abs(float(nll[0]) - 500.0) <= 1e-3
