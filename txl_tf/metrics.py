"""Perplexity and bits from nats, with one rule for losses too large for a float."""

import math

# exp() of more is no float64.
_MAX_EXPONENT = 700.0


def perplexity(nats: float) -> float:
    """Returns the exponential of a mean loss; of 700 nats for every larger one.

    Args:
        nats: float. Mean negative log-likelihood.
    """
    return math.exp(min(nats, _MAX_EXPONENT))


def bits(nats: float) -> float:
    """Converts nats to bits.

    Args:
        nats: float. A negative log-likelihood.
    """
    return nats / math.log(2.0)
