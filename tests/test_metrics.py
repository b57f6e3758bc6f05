import math

import pytest

from txl_tf import metrics


def test_perplexity_is_the_exponential_and_finite_for_every_loss():
    assert metrics.perplexity(0.0) == 1.0
    assert metrics.perplexity(math.log(50.0)) == pytest.approx(50.0)
    assert metrics.perplexity(1e9) == metrics.perplexity(math.inf) == math.exp(700.0)
    assert math.isnan(metrics.perplexity(math.nan))


def test_a_byte_of_even_chances_has_eight_bits():
    assert metrics.bits(math.log(256.0)) == pytest.approx(8.0)
