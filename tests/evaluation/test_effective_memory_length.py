"""The longest useful memory, by perplexities that are given."""

import pytest

from txl_tf.evaluation.effective_memory_length import effective_memory_length

PERPLEXITIES = {10: 20.0, 20: 18.0, 30: 17.9, 40: 17.89, 50: 15.0}


@pytest.mark.parametrize(
    ("threshold", "length", "measured", "is_lower_bound"),
    [
        # From 30 to 40 it is 0.056 %; what comes later is not looked at.
        (0.001, 30, [10, 20, 30, 40], False),
        (0.05, 20, [10, 20, 30], False),
        (0.2, 10, [10, 20], False),
        (0.0001, 50, [10, 20, 30, 40, 50], True),
    ],
)
def test_memory_grows_until_a_length_gains_too_little(threshold, length, measured, is_lower_bound):
    asked = []

    def perplexity_of(memory_length):
        asked.append(memory_length)
        return PERPLEXITIES[memory_length]

    found = effective_memory_length(PERPLEXITIES, perplexity_of, threshold)
    assert (found.length, found.is_lower_bound) == (length, is_lower_bound)
    assert asked == measured
    assert found.perplexities == tuple((each, PERPLEXITIES[each]) for each in measured)


def test_a_single_length_says_nothing_about_longer_ones():
    found = effective_memory_length([5], lambda length: 9.0)
    assert (found.length, found.is_lower_bound) == (5, True)


def test_no_length_is_refused():
    with pytest.raises(ValueError, match="Received: none"):
        effective_memory_length([], lambda length: 9.0)
