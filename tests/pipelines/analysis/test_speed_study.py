"""Times that a clock of ours says, and who is called when."""

import itertools

import pytest

from pipelines.analysis.speed_study import TokenSpeed, measure_in_turn


def test_a_token_takes_the_median_of_its_calls():
    speed = TokenSpeed(tokens_per_call=4, call_seconds=(8.0, 2.0, 4.0))
    assert speed.seconds_per_token == 1.0
    assert (speed.fastest_seconds_per_token, speed.slowest_seconds_per_token) == (0.5, 2.0)
    assert speed.to_dict()["num_calls"] == 3


def test_things_take_turns_after_a_call_each_that_is_not_timed():
    called = []
    ticks = itertools.count()
    speeds = measure_in_turn(
        {name: lambda name=name: called.append(name) for name in "ab"},
        tokens_per_call={"a": 1, "b": 2},
        calls_per_turn={"a": 1, "b": 2},
        num_turns=2,
        clock=lambda: float(next(ticks)),
    )
    assert called == ["a", "b", "a", "b", "b", "a", "b", "b"]
    assert speeds["a"].call_seconds == (1.0, 1.0)
    assert len(speeds["b"].call_seconds) == 4
    assert speeds["b"].seconds_per_token == pytest.approx(0.5)
