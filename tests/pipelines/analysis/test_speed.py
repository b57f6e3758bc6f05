"""`txl analyze speed` with the smallest models: its structure, not its figures."""

import json

import pytest

from pipelines.analysis.speed import VANILLA, Reading, format_speeds, report_rows
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
    report = json.loads(capsys.readouterr().out)
    assert report["model"]["num_layers"] == 1 and not report["jit_compile"]
    kinds = ("keys_and_values", "hidden_states")
    ways = [("none", 1), *((kind, length) for length in (4, 1) for kind in kinds)]
    rows = report["rows"]
    assert [(row["memory"], row["tokens_per_call"]) for row in rows] == 2 * ways
    assert [row["attention_length"] for row in rows] == [8] * 5 + [800] * 5
    assert [row["num_calls"] for row in rows] == 2 * [2, 6, 6, 6, 6]
    lines = format_speeds(report).splitlines()
    assert len(lines) == 3 + 10 + 1
    for row, line in zip(rows, lines[3:-1], strict=True):
        if row["memory"] != "none":
            assert f" {row['slowdown_of_vanilla']:,.1f}" in line


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


def test_a_slowdown_compares_medians_of_a_token():
    seconds = {VANILLA: [9.0, 8.0, 30.0], Reading("hidden_states", 4): [8.0, 2.0, 4.0]}
    vanilla, row = report_rows(3800, seconds)
    assert vanilla["seconds_per_token"] == 9.0
    assert row["seconds_per_token"] == 1.0
    assert (row["fastest_seconds_per_token"], row["slowest_seconds_per_token"]) == (0.5, 2.0)
    assert row["slowdown_of_vanilla"] == 9.0
