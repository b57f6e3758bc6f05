"""Distributions of the initial weights, from many numbers at a time."""

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


@pytest.mark.parametrize("position_encoding", ENCODINGS)
@pytest.mark.parametrize("initializer", ["normal", "uniform"])
def test_weights_have_the_distribution_of_their_kind(position_encoding, initializer):
    settings = {"initializer_stddev": 0.05, "projection_stddev": 0.3, "initializer_range": 0.2}
    numbers = weights_by_kind(position_encoding, initializer=initializer, **settings)
    is_uniform = initializer == "uniform"
    for kind, normal_stddev in ((TABLES, 0.05), (KERNELS, 0.05), (PROJECTIONS, 0.3)):
        for path, values in numbers[kind].items():
            stddev = 0.2 / 3**0.5 if is_uniform else normal_stddev
            error = values.size**-0.5
            assert abs(values.mean()) < 5 * stddev * error, path
            assert abs(values.std() / stddev - 1.0) < 5 * error / 2**0.5, path
            assert not is_uniform or np.abs(values).max() <= 0.2, path
    assert all(np.all(values == 0.0) for values in numbers[ZEROS].values())
    assert all(np.all(values == 1.0) for values in numbers[ONES].values())
    # One initializer with one seed for several weights would draw the same numbers.
    drawn = [
        tuple(values.ravel()[:16].tolist())
        for kind in (TABLES, PROJECTIONS, KERNELS)
        for values in numbers[kind].values()
    ]
    assert len(set(drawn)) == len(drawn)
