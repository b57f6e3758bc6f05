"""Settings per row, against the samplers that have one for all."""

import numpy as np
import pytest
import tensorflow as tf

from txl_tf import functional
from txl_tf.export.row_sampler import RowSampler
from txl_tf.samplers import GreedySampler, RandomSampler, TopKSampler, TopPSampler

NUM_TOKENS = 37
# Temperature, k, p, and the sampler that has them.
ROWS = [
    (0.0, 0, 1.0, GreedySampler()),
    (1.0, 0, 1.0, RandomSampler()),
    (0.3, 0, 1.0, RandomSampler(0.3)),
    (1.5, 3, 1.0, TopKSampler(3, 1.5)),
    (1.0, 1000, 1.0, TopKSampler(1000)),
    (1.0, 0, 0.4, TopPSampler(0.4)),
    (2.0, 0, 1e-9, TopPSampler(1e-9, 2.0)),
    (1.0, 5, 0.9, TopPSampler(0.9, k=5)),
]


@pytest.mark.parametrize("has_ties", [False, True])
def test_every_row_draws_what_its_own_sampler_draws(has_ties):
    num_rows = len(ROWS)
    logits = np.random.default_rng(0).normal(size=(num_rows, NUM_TOKENS)) * 2.0
    logits = (np.round(logits) if has_ties else logits).astype("float32")
    temperature, top_k, top_p, samplers = zip(*ROWS, strict=True)
    seeds = np.arange(100, 100 + num_rows, dtype="int32")
    sampler = RowSampler(
        tf.constant(temperature), tf.constant(top_k), tf.constant(top_p), tf.constant(seeds)
    )
    drawn = []
    for position in range(20):
        token_ids = sampler(tf.constant(logits), tf.constant(position))
        for row, own in enumerate(samplers):
            seed = functional.row_seeds(tf.constant([seeds[row], position]), tf.constant([0]))
            expected = own(tf.constant(logits[row : row + 1]), seed)
            assert token_ids[row] == expected[0], (position, row)
        drawn.append(token_ids.numpy())
    assert all(len(set(column)) > 1 for column in np.stack(drawn, axis=1)[[1, 3, 4]])


def test_the_lowest_temperature_is_the_most_probable_token():
    logits = np.array([[-40.0, -10.0, -12.0]], "float32")
    one = tf.constant([1.0])
    sampler = RowSampler(tf.constant([1e-38]), tf.constant([0]), one, tf.constant([5]))
    assert sampler(tf.constant(logits), tf.constant(0))[0] == 1
