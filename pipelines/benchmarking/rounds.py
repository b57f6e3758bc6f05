"""Rounds in which several processes take turns, with medians and spreads."""

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from .turn_process import Figures

_MAX_COUNT = 1_000_000
_MAX_TRIALS = 4


@dataclasses.dataclass(frozen=True)
class Spread:
    """Figure of several rounds: the median, and how far the others are from it.

    Attributes:
        rounds: tuple of float. The figure of every round.
    """

    rounds: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Takes the figures of all rounds."""
        return cls(tuple(values))

    @property
    def median(self) -> float:
        """Median of the rounds."""
        return statistics.median(self.rounds)

    @property
    def least(self) -> float:
        """Least of the rounds."""
        return min(self.rounds)

    @property
    def most(self) -> float:
        """Largest of the rounds."""
        return max(self.rounds)

    def to_dict(self) -> dict[str, Any]:
        """Returns all of it as JSON can hold it."""
        return {
            "median": self.median,
            "least": self.least,
            "most": self.most,
            "rounds": list(self.rounds),
        }


def count_for(turn: Callable[[int], Figures], turn_seconds: float) -> int:
    """Finds how many times a process does its work in a turn of some seconds.

    It has done the work as often when this returns, so that all is compiled.

    Args:
        turn: function that does the work so many times.
        turn_seconds: float.
    """
    count = 1
    for _ in range(_MAX_TRIALS):
        turn(count)  # compiles
        wanted = _count(turn(count), count, turn_seconds)
        # What costs the same for any number of times has counted as if it came with each.
        if wanted < 2 * count:
            break
        count = wanted
    else:
        turn(count)
    return count


def _count(figures: Figures, count: int, turn_seconds: float) -> int:
    wanted = count * turn_seconds / max(figures["seconds"], 1e-9)
    return max(1, min(round(wanted), _MAX_COUNT))


def alternate(
    turns: Mapping[str, Callable[[], Figures]], num_rounds: int
) -> dict[str, list[Figures]]:
    """Lets several take turns, and every other round in the opposite order.

    Whatever else the machine does meanwhile slows all of them down, so figures
    of one round are compared with each other.

    Args:
        turns: functions by name, that return the figures of a turn.
        num_rounds: int.

    Returns:
        The figures of every round, by name.
    """
    figures: dict[str, list[Figures]] = {name: [] for name in turns}
    for index in range(num_rounds):
        for name in list(turns)[:: -1 if index % 2 else 1]:
            figures[name].append(turns[name]())
    return figures


def token_rates(figures: Sequence[Figures]) -> Spread:
    """Returns the tokens per second of every turn."""
    return Spread.of([each["tokens"] / each["seconds"] for each in figures])


def ratios(numerators: Spread, denominators: Spread) -> Spread:
    """Divides figures of the same rounds."""
    pairs = zip(numerators.rounds, denominators.rounds, strict=True)
    return Spread.of([above / below for above, below in pairs])


def short(number: float) -> str:
    """Shows a number with three digits, or all those before the point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
