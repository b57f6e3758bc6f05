"""How long a token takes."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenSpeed:
    """Wall times of calls that score equally many tokens each."""

    tokens_per_call: int
    """Tokens that a call scores."""
    call_seconds: tuple[float, ...]
    """Wall time of every call."""

    @property
    def seconds_per_token(self) -> float:
        """Median over the calls."""
        return statistics.median(self.call_seconds) / self.tokens_per_call

    @property
    def fastest_seconds_per_token(self) -> float:
        """That of the fastest call."""
        return min(self.call_seconds) / self.tokens_per_call

    @property
    def slowest_seconds_per_token(self) -> float:
        """That of the slowest call."""
        return max(self.call_seconds) / self.tokens_per_call

    def to_dict(self) -> dict[str, Any]:
        """All figures as plain JSON types."""
        return {
            "tokens_per_call": self.tokens_per_call,
            "num_calls": len(self.call_seconds),
            "seconds_per_token": self.seconds_per_token,
            "fastest_seconds_per_token": self.fastest_seconds_per_token,
            "slowest_seconds_per_token": self.slowest_seconds_per_token,
        }


def measure_in_turn(
    calls: Mapping[Any, Callable[[], Any]],
    tokens_per_call: Mapping[Any, int],
    calls_per_turn: Mapping[Any, int],
    num_turns: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Any, TokenSpeed]:
    """Times several things on one machine, so that they can be compared.

    They take turns: whatever else the machine does in the meantime slows all
    of them down. Each is called once before, to compile it.

    Args:
        calls: functions that return when all is computed.
        tokens_per_call: int for each of them. Tokens that a call scores.
        calls_per_turn: int for each of them.
        num_turns: int. Turns that each of them has.
        clock: function that returns seconds.

    Returns:
        A `TokenSpeed` for each.
    """
    for call in calls.values():
        call()
    seconds: dict[Any, list[float]] = {name: [] for name in calls}
    for _ in range(num_turns):
        for name, call in calls.items():
            for _ in range(calls_per_turn[name]):
                begin = clock()
                call()
                seconds[name].append(clock() - begin)
    return {
        name: TokenSpeed(tokens_per_call=tokens_per_call[name], call_seconds=tuple(seconds[name]))
        for name in calls
    }
