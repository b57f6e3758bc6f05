"""Samplers draw tokens with the exact probabilities of their settings."""

import numpy as np
import pytest
import tensorflow as tf

from tests.slow_case import slow_case
from txl_tf import functional
from txl_tf.samplers import GreedySampler, RandomSampler

PROBABILITIES = np.array([0.05, 0.30, 0.02, 0.25, 0.08, 0.15, 0.03, 0.12])
NUM_DRAWS = 20_000
SEED = np.array([3, 1], "int32")


def logits_of(probabilities, num_rows=NUM_DRAWS):
    # Models return logits up to a constant, so samplers must not need normalised ones.
    row = np.log(probabilities).astype("float32") + 2.5
    return np.tile(row, (num_rows, 1))


def draw(sampler, probabilities=PROBABILITIES, seed=SEED, num_rows=NUM_DRAWS):
    tokens = sampler(tf.constant(logits_of(probabilities, num_rows)), tf.constant(seed))
    assert (tokens.shape, tokens.dtype) == ((num_rows,), tf.int32)
    return tokens.numpy()


def restricted(probabilities, tokens):
    """Returns the probabilities of some tokens only, with the sum 1."""
    only = np.where(np.isin(np.arange(len(probabilities)), tokens), probabilities, 0.0)
    return only / only.sum()


def p_value(drawn, expected):
    """Computes the p-value of the chi-square test; 0 if an impossible token was drawn."""
    counts = np.bincount(drawn, minlength=len(expected))
    possible = expected > 0.0
    if counts[~possible].any():
        return 0.0
    mean = len(drawn) * expected[possible]
    statistic = np.sum((counts[possible] - mean) ** 2 / mean)
    return float(tf.math.igammac((possible.sum() - 1) / 2.0, statistic / 2.0))


def sharpened(temperature):
    """Returns `PROBABILITIES` at a temperature."""
    powers = PROBABILITIES ** (1.0 / temperature)
    return powers / powers.sum()


# In order of probability the tokens are 1, 3, 5, 7, 4, 0, 6, 2. Their cumulative sums are 0.30,
# 0.55, 0.70, 0.82, 0.90, 0.95, 0.98, 1.
@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (RandomSampler(top_p=1.0), PROBABILITIES),
        (RandomSampler(0.5, top_p=1.0), sharpened(0.5)),
        (RandomSampler(top_k=3, top_p=1.0), restricted(PROBABILITIES, [1, 3, 5])),
        (RandomSampler(2.0, top_k=4, top_p=1.0), restricted(sharpened(2.0), [1, 3, 5, 7])),
        (RandomSampler(top_k=50, top_p=1.0), PROBABILITIES),
        (RandomSampler(top_p=0.6), restricted(PROBABILITIES, [1, 3, 5])),
        (RandomSampler(top_p=0.81), restricted(PROBABILITIES, [1, 3, 5, 7])),
        (RandomSampler(top_p=0.83), restricted(PROBABILITIES, [1, 3, 5, 7, 4])),
        (RandomSampler(2.0, top_k=5, top_p=0.9, min_p=0.8), restricted(sharpened(2.0), [1, 3])),
        # The four most probable have 0.82 together; two of them reach 0.6 of 0.82.
        (RandomSampler(top_k=4, top_p=0.6), restricted(PROBABILITIES, [1, 3])),
        (RandomSampler(top_p=1.0, min_p=0.45), restricted(PROBABILITIES, [1, 3, 5])),
        (RandomSampler(2.0, top_p=1.0, min_p=0.7), restricted(sharpened(2.0), [1, 3, 5])),
    ],
)
def test_draws_follow_the_exact_probabilities(sampler, expected):
    assert p_value(draw(sampler), expected) > 0.01


def test_seeds_of_rows_draw_the_same_tokens_as_one_seed():
    # Generation passes a seed for each row, and the other rows must not change a draw.
    seeds = functional.row_seeds(tf.constant(SEED), tf.range(NUM_DRAWS))
    logits = tf.constant(logits_of(PROBABILITIES))
    together = draw(RandomSampler(top_p=1.0))
    np.testing.assert_array_equal(RandomSampler(top_p=1.0)(logits, seeds), together)
    some = [7, 300, 3]
    tokens = RandomSampler(top_p=1.0)(tf.gather(logits, some), tf.gather(seeds, some))
    np.testing.assert_array_equal(tokens, together[some])


def test_rare_tokens_are_drawn_at_their_exact_rate():
    # A probability of 1e-4 tests the tail of the noise, where float32 has few numbers.
    probabilities = np.full(40, 1e-4)
    probabilities[0] = 1.0 - 39e-4
    tokens = draw(RandomSampler(top_p=1.0), probabilities, num_rows=100_000)
    assert abs(np.sum(tokens > 0) - 390) < 5 * np.sqrt(390)


def test_tokens_that_tie_with_the_last_candidate_of_top_k_are_candidates():
    tokens = draw(RandomSampler(top_k=2, top_p=1.0), np.array([0.4, 0.2, 0.2, 0.15, 0.05]))
    assert p_value(tokens, np.array([0.5, 0.25, 0.25, 0.0, 0.0])) > 0.01


def test_greedy_takes_the_first_of_the_highest_for_every_seed():
    logits = tf.constant([[0.0, 2.0, 2.0], [5.0, -1.0, 2.0]])
    for seed in ([0, 0], [9, 4]):
        tokens = GreedySampler()(logits, tf.constant(seed))
        assert (tokens.dtype, tokens.numpy().tolist()) == (tf.int32, [1, 0])


NUM_TOKENS = 37
# Temperature, top-k, top-p, min-p, and a sampler that has these settings for all rows.
ROWS = [
    (0.0, 0, 1.0, 0.0, GreedySampler()),
    (1.0, 0, 1.0, 0.0, RandomSampler(top_p=1.0)),
    (0.3, 0, 1.0, 0.0, RandomSampler(0.3, top_p=1.0)),
    (1.5, 3, 1.0, 0.0, RandomSampler(1.5, top_k=3, top_p=1.0)),
    (1.0, 1000, 1.0, 0.0, RandomSampler(top_k=1000, top_p=1.0)),
    (1.0, 0, 0.4, 0.0, RandomSampler(top_p=0.4)),
    (2.0, 0, 1e-9, 0.0, RandomSampler(2.0, top_p=1e-9)),
    (1.0, 5, 0.9, 0.0, RandomSampler(top_k=5)),
    (1.3, 0, 1.0, 0.2, RandomSampler(1.3, top_p=1.0, min_p=0.2)),
]


@pytest.mark.parametrize("has_ties", [False, slow_case(True)])
def test_a_sampler_with_settings_of_rows_draws_the_tokens_of_samplers_with_one_setting(has_ties):
    num_rows = len(ROWS)
    logits = np.random.default_rng(0).normal(size=(num_rows, NUM_TOKENS)) * 2.0
    logits = tf.constant(np.round(logits) if has_ties else logits, tf.float32)
    *settings, samplers = zip(*ROWS, strict=True)
    sampler = tf.function(
        RandomSampler(*(tf.Variable(setting) for setting in settings)), autograph=False
    )
    tokens = []
    for position in range(20):
        seeds = [
            functional.row_seeds(tf.constant([100 + row, position]), tf.constant([0]))
            for row in range(num_rows)
        ]
        token_ids = sampler(logits, tf.concat(seeds, axis=0))
        for row, own in enumerate(samplers):
            assert token_ids[row] == own(logits[row : row + 1], seeds[row])[0], (position, row)
        tokens.append(token_ids.numpy())
    assert all(len(set(column)) > 1 for column in np.stack(tokens, axis=1)[[1, 3, 4]])


def test_the_lowest_temperature_of_a_row_is_the_most_probable_token():
    logits = tf.constant([[-40.0, -10.0, -12.0]])
    assert RandomSampler(tf.constant([1e-38]))(logits, tf.constant([5, 0]))[0] == 1
