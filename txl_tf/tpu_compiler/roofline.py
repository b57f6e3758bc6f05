"""Roofline time of a step on a chip, and the largest batch that fits its memory."""

import dataclasses
from collections.abc import Callable
from typing import Self

from txl_tf.tpu_compiler.chips import Topology
from txl_tf.tpu_compiler.compiler import CompiledProgram


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roofline:
    """Seconds per step that each resource needs at its peak.

    No step is faster than the slowest resource. A real step is slower: vector and scalar work,
    and waiting, are not counted.
    """

    flop_seconds: float
    """Floating-point operations at the peak of the matrix units in bfloat16."""
    hbm_seconds: float
    """Traffic with the high-bandwidth memory at its bandwidth."""
    all_reduce_seconds: float
    """All-reduces at the bandwidth of all links; may overlap with the rest."""

    @classmethod
    def of(cls, program: CompiledProgram, topology: Topology) -> Self:
        """Computes the times of one replica's program that fits."""
        chip, num_chips = topology.chip, topology.num_chips
        # In a ring, all but one of n parts of the sum pass a chip's links twice. Replicas of one
        # chip first add up among themselves.
        passed = 2 * (num_chips - 1) / num_chips * program.all_reduce_bytes
        return cls(
            flop_seconds=program.flops * chip.num_replicas / chip.flops_per_second,
            hbm_seconds=program.hbm_bytes * chip.num_replicas / chip.hbm_bytes_per_second,
            all_reduce_seconds=passed / chip.interconnect_bytes_per_second,
        )

    @property
    def step_seconds(self) -> float:
        """Time of the slowest resource except the network."""
        return max(self.flop_seconds, self.hbm_seconds)


_RESOLUTION = 50


@dataclasses.dataclass(frozen=True)
class Trial:
    """One compilation for `num_rows` rows per replica; `needed_bytes` may exceed `limit_bytes`."""

    num_rows: int
    fits: bool
    needed_bytes: int
    limit_bytes: int


def largest_rows(
    attempt: Callable[[int], Trial], first: Trial, step: int = 1, max_rows: int = 4096
) -> list[Trial]:
    """Finds the largest number of rows, a multiple of `step`, that fits; returns all trials.

    Memory grows almost linearly with the rows, so each guess is where the line through the last
    two trials meets the limit, within the known bounds; if guesses stop closing in, it bisects.
    The largest trial that fits is exact below 100 rows and else within 2 %, or `max_rows`; no
    trial fits if `step` rows do not.
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
        # The compiler did not report the excess.
        return last.num_rows * 2 if last.fits else last.num_rows // 2
    if len(trials) == 1:
        # The part that does not depend on rows is still unknown.
        factor = min(4.0, last.limit_bytes / max(last.needed_bytes, 1))
        return int(last.num_rows * factor)
    # The nearest two to the limit, because memory is not exactly linear.
    near = sorted(trials, key=lambda trial: abs(trial.needed_bytes - trial.limit_bytes))[:2]
    slope = (near[1].needed_bytes - near[0].needed_bytes) / (near[1].num_rows - near[0].num_rows)
    if slope <= 0:
        return last.num_rows * 2 if last.fits else last.num_rows // 2
    return int(near[0].num_rows + (near[0].limit_bytes - near[0].needed_bytes) / slope)
