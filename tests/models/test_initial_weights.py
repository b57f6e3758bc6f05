"""Where a model's weights start, from many numbers at a time."""

import numpy as np
import pytest
from keras import ops

from tests.small_models import small_config
from txl_tf.models.transformer_xl import TransformerXL

TABLES, PROJECTIONS, KERNELS, ZEROS, ONES = "tables", "projections", "kernels", "zeros", "ones"
KINDS = {
    "table_0": TABLES,
    "table_1": TABLES,
    "projection_0": PROJECTIONS,
    "projection_1": PROJECTIONS,
    "kernel": KERNELS,
    "content_bias": KERNELS,
    "position_bias": KERNELS,
    "distance_keys": KERNELS,
    "distance_bias": KERNELS,
    "positions": KERNELS,
    "bias": ZEROS,
    "bias_0": ZEROS,
    "bias_1": ZEROS,
    "beta": ZEROS,
    "cluster_weight": ZEROS,
    "cluster_bias": ZEROS,
    "gamma": ONES,
}
ENCODINGS = {
    "transformer_xl": {},
    "shaw": {"num_positions": 50},
    "learned": {"num_positions": 50},
}


def weights_by_kind(position_encoding, **changes):
    """All initial numbers of a model, together by what they are for."""
    config = small_config(
        4,
        4,
        vocabulary_size=400,
        width=32,
        num_heads=4,
        head_dim=16,
        embedding_dim=48,
        cutoffs=(100,),
        division_factor=2,
        tie_weights=False,
        position_encoding=position_encoding,
        **ENCODINGS[position_encoding],
        **changes,
    )
    numbers = {}
    for weight in TransformerXL(config).weights:
        value = ops.convert_to_numpy(weight)
        numbers.setdefault(KINDS[weight.name], {})[weight.path] = value
    return numbers


def assert_normal(values, stddev):
    """Mean, spread and share beyond one standard deviation, within five errors."""
    count = values.size
    assert abs(values.mean()) < 5 * stddev / count**0.5
    assert abs(values.std() / stddev - 1.0) < 5 / (2 * count) ** 0.5
    beyond = np.mean(np.abs(values) > stddev)
    assert abs(beyond - 0.3173) < 5 * (0.3173 * 0.6827 / count) ** 0.5


@pytest.mark.parametrize("position_encoding", ENCODINGS)
def test_normal_weights_have_their_standard_deviations(position_encoding):
    numbers = weights_by_kind(position_encoding, initializer_stddev=0.05, projection_stddev=0.3)
    for kind, stddev in ((TABLES, 0.05), (KERNELS, 0.05), (PROJECTIONS, 0.3)):
        for values in numbers[kind].values():
            assert_normal(values, stddev)
    assert all(np.all(values == 0.0) for values in numbers[ZEROS].values())
    assert all(np.all(values == 1.0) for values in numbers[ONES].values())


@pytest.mark.parametrize("position_encoding", ENCODINGS)
def test_uniform_weights_fill_their_range_and_nothing_else(position_encoding):
    numbers = weights_by_kind(position_encoding, initializer="uniform", initializer_range=0.2)
    for kind in (TABLES, PROJECTIONS, KERNELS):
        for path, values in numbers[kind].items():
            assert np.abs(values).max() <= 0.2, path
            # Five errors of the variance of a uniform distribution, range^2 / 3.
            bound = 5 * (0.8 / values.size) ** 0.5
            assert abs(np.mean(values**2) * 3 / 0.2**2 - 1.0) < bound, path
            assert abs(values.mean()) < 5 * 0.2 / (3 * values.size) ** 0.5, path
    assert all(np.all(values == 0.0) for values in numbers[ZEROS].values())
    assert all(np.all(values == 1.0) for values in numbers[ONES].values())


@pytest.mark.parametrize("initializer", ["normal", "uniform"])
def test_no_two_weights_start_alike(initializer):
    """One initializer with one seed for several weights would draw the same numbers."""
    for position_encoding in ENCODINGS:
        numbers = weights_by_kind(position_encoding, initializer=initializer)
        drawn = [
            values.ravel()[:16]
            for kind in (TABLES, PROJECTIONS, KERNELS)
            for values in numbers[kind].values()
        ]
        assert len({tuple(values.tolist()) for values in drawn}) == len(drawn)
