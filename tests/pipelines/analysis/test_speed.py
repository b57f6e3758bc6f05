"""`txl analyze speed` with the smallest models: its structure, not its figures."""

import itertools
import json

import pytest

from pipelines.analysis.speed import TokenSpeed, describe, measure_in_turn
from pipelines.command_line import main

TINY = {
    "num_layers": 1,
    "hidden_dim": 8,
    "num_heads": 2,
    "head_dim": 4,
    "intermediate_dim": 12,
}


def analyze(*more):
    settings = [f"model.{name}={value}" for name, value in TINY.items()]
    overrides = [word for setting in settings for word in ("--set", setting)]
    return main(["analyze", "speed", *overrides, *more])


def test_every_way_to_read_is_timed_at_every_attention_length(capsys):
    more = ("--attention", "8,800", "--segment-length", "4", "--repeats", "2", "--json")
    assert analyze(*more, "--set", "training.jit_compile=false") == 0
    output = capsys.readouterr()
    report = json.loads(output.out)
    said = [line for line in output.err.splitlines() if "times as long" in line]
    for start, line in zip((1, 6), said, strict=True):
        with_memory = report["rows"][start : start + 4]
        best = max(row["slowdown_of_vanilla"] for row in with_memory)
        published = max(
            row["slowdown_of_vanilla"] for row in with_memory if row["memory"] == "states"
        )
        assert f"takes {published:,.1f} times as long as a memory of hidden states" in line
        assert f"{best:,.1f} times as long" in line
    assert report["model"]["num_layers"] == 1 and not report["jit_compile"]
    ways = [("none", 1), ("projections", 4), ("states", 4), ("projections", 1), ("states", 1)]
    rows = report["rows"]
    assert [(row["memory"], row["tokens_per_call"]) for row in rows] == 2 * ways
    assert [row["attention_length"] for row in rows] == [8] * 5 + [800] * 5
    for start in (0, 5):
        vanilla = rows[start]["seconds_per_token"]
        for row in rows[start : start + 5]:
            assert row["slowdown_of_vanilla"] == pytest.approx(vanilla / row["seconds_per_token"])
            assert row["num_calls"] == (2 if row["memory"] == "none" else 6)
    assert [row["published_slowdown"] for row in rows] == [None] * 7 + [363, None, 363]

    lines = describe(report).splitlines()
    assert "1 layers, hidden 8, 2 heads of 4, inner 12" in lines[0]
    assert len(lines) == 3 + 10 + 1
    for row, line in zip(rows, lines[3:-1], strict=True):
        if row["memory"] == "none":
            assert line.split()[0] == str(row["attention_length"])
        else:
            published = [] if row["published_slowdown"] is None else ["363"]
            slowdown = f"{row['slowdown_of_vanilla']:,.1f}"
            assert line.split()[-1 - len(published) :] == [slowdown, *published]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--attention", "8;9"), "--attention 8;9"),
        (("--attention", "8,0"), "--attention 0"),
        (("--repeats", "0"), "--repeats 0"),
        (("--segment-length", "-1"), "--segment-length -1"),
        (
            (
                *("--set", "model.share_attention_biases=false"),
                *("--set", "model.position_encoding=sinusoidal"),
            ),
            "transformer_xl, shaw, shaw_two_terms",
        ),
    ],
)
def test_wrong_arguments_are_refused(more, message, capsys):
    assert analyze(*more) == 2
    assert message in capsys.readouterr().err


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
