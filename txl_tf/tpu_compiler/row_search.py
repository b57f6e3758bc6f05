"""The largest number of rows that fits a chip, with few compilations."""

import dataclasses
from collections.abc import Callable

_RESOLUTION = 50


@dataclasses.dataclass(frozen=True)
class Trial:
    """One compilation.

    Attributes:
        num_rows: int. Rows per replica.
        fits: bool.
        needed_bytes: int. Memory that it needs or would need.
        limit_bytes: int. Memory that there is.
    """

    num_rows: int
    fits: bool
    needed_bytes: int
    limit_bytes: int


def largest_rows(
    attempt: Callable[[int], Trial], first: Trial, step: int = 1, max_rows: int = 4096
) -> list[Trial]:
    """Finds the largest number of rows that fits.

    Memory grows almost linearly with the rows, so each guess is where the line
    through the last two trials meets the limit, kept between what is known to
    fit and what is known not to. When guesses stop closing in, halving does.

    Args:
        attempt: function of a number of rows that compiles the program.
        first: `Trial` that was made already.
        step: int. Numbers of rows are multiples of it.
        max_rows: int. More are not tried.

    Returns:
        List of the trials in the order they were made, the first among them.
        The largest of those that fit is the largest that does, from 100 rows on
        to within 2 %, unless it is `max_rows`; none of them fits if not even
        `step` rows do.
    """
    trials = [first]
    while (guess := _next_guess(trials, step, max_rows)) is not None:
        trials.append(attempt(guess))
    return trials


def _next_guess(trials: list[Trial], step: int, max_rows: int) -> int | None:
    low = max((trial.num_rows for trial in trials if trial.fits), default=0)
    high = min((trial.num_rows for trial in trials if not trial.fits), default=max_rows + step)
    high = max(high, low)
    # One row of hundreds is not worth a compilation.
    if high - low <= max(step, low // _RESOLUTION):
        return None
    is_slow = len(trials) > 4 and high <= max_rows
    guess = ((low + high) // 2 if is_slow else _linear_guess(trials)) // step * step
    return min(max(guess, low + step), high - step)


def _linear_guess(trials: list[Trial]) -> int:
    last = trials[-1]
    if any(trial.needed_bytes <= 0 for trial in trials):
        # The compiler did not say how much too much it was.
        return last.num_rows * 2 if last.fits else last.num_rows // 2
    if len(trials) == 1:
        # What does not depend on the rows is not known yet.
        factor = min(4.0, last.limit_bytes / max(last.needed_bytes, 1))
        return int(last.num_rows * factor)
    # The nearest two to the limit, since the line bends a little.
    near = sorted(trials, key=lambda trial: abs(trial.needed_bytes - trial.limit_bytes))[:2]
    slope = (near[1].needed_bytes - near[0].needed_bytes) / (near[1].num_rows - near[0].num_rows)
    if slope <= 0:
        return last.num_rows * 2 if last.fits else last.num_rows // 2
    return int(near[0].num_rows + (near[0].limit_bytes - near[0].needed_bytes) / slope)
