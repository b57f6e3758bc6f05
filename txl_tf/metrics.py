"""Perplexity and bits from nats, with one rule for losses too large for a float."""

import math

# exp(710) overflows float64.
_MAX_EXPONENT = 700.0


def perplexity(nats: float) -> float:
    """Returns the exponential of a mean loss in nats, capped at 700 nats."""
    return math.exp(min(nats, _MAX_EXPONENT))


def bits(nats: float) -> float:
    """Converts a negative log-likelihood from nats to bits."""
    return nats / math.log(2.0)
