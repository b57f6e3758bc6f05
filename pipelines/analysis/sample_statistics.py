"""Mean, deviation and confidence interval over seeds."""

import dataclasses
import math
import statistics
from collections.abc import Sequence

# Student's t, 97.5 %, for 1 to 30 degrees of freedom; beyond, the normal distribution's.
_QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_NORMAL_QUANTILE = 1.960


@dataclasses.dataclass(frozen=True)
class SampleStatistics:
    """Mean of a sample with its deviation and 95 % confidence interval.

    Args:
        values: sequence of float, one or more.
    """

    values: tuple[float, ...]

    def __init__(self, values: Sequence[float]) -> None:
        if not values:
            raise ValueError("`values` must not be empty. Received: no value")
        object.__setattr__(self, "values", tuple(values))

    @property
    def count(self) -> int:
        """How many values there are."""
        return len(self.values)

    @property
    def mean(self) -> float:
        """Their mean."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """Their standard deviation, of a sample; `None` of a single value."""
        return statistics.stdev(self.values) if self.count > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % confidence interval of the mean (Student's t); `None` for a single value."""
        if self.deviation is None:
            return None
        freedom = self.count - 1
        quantile = _QUANTILES[freedom - 1] if freedom <= len(_QUANTILES) else _NORMAL_QUANTILE
        half = quantile * self.deviation / math.sqrt(self.count)
        return self.mean - half, self.mean + half

    def describe(self, digits: int = 2) -> str:
        """`27.02 +- 0.11`, or the mean alone of a single value."""
        spread = "" if self.deviation is None else f" +- {self.deviation:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread}"
