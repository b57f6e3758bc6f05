"""`txl benchmark`: what it takes, its tables, and small runs of all suites."""

import json

import pytest

from pipelines.benchmark import describe
from pipelines.benchmarking.measurement import add_growth
from pipelines.benchmarking.rounds import Spread
from pipelines.command_line import main
from tests.pipelines.benchmarking.fake_peer import write_fake_python

TINY = {
    **{"num_layers": 1, "hidden_dim": 8, "num_heads": 2, "head_dim": 4, "intermediate_dim": 12},
    **{"segment_length": 4, "memory_length": 4},
}


def benchmark(*words):
    settings = [word for name, value in TINY.items() for word in ("--set", f"model.{name}={value}")]
    return main(["benchmark", *words, *settings])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "mean train"),
        (["train", "--text", "x"], "No suite that was chosen reads --text"),
        (["read", "--set", "model.num_layers=2"], "No suite that was chosen reads --set"),
        (["train", "--against", "hugging_face"], "goes with --peer-python"),
        (["train", "--peer-python", "sh"], "goes with --against"),
        (["train", "--against", "huging_face", "--peer-python", "sh"], "mean hugging_face"),
        (["read", "--against", "model_garden", "--peer-python", "sh"], "train, evaluate"),
        (["train", "--rounds", "0"], "--rounds 0"),
        (["train", "--segment-lengths", "1;2"], "--segment-lengths 1;2"),
        (
            [
                *("train", "--against", "hugging_face", "--peer-python", "sh"),
                *("--set", "model.pre_norm=true"),
            ],
            "plain Transformer-XL",
        ),
    ],
)
def test_wrong_usage_is_2(words, message, capsys):
    assert main(["benchmark", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["prepare", "--text", "none.txt"],
        ["read", "--data", "none"],
        ["train", "--against", "hugging_face", "--peer-python", "none/python"],
    ],
)
def test_what_is_not_there_is_66(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["benchmark", *words]) == 66
    assert "none" in capsys.readouterr().err


def speed(suite, tokens_per_second, flops, **more):
    spread = Spread.of([tokens_per_second, tokens_per_second / 2, tokens_per_second * 2]).to_dict()
    shares = {name: Spread.of([share] * 3).to_dict() for name, share in more.items()}
    return {
        "suite": suite,
        "shape": f"a {suite} of {flops}",
        "tokens_per_second": spread,
        "flops_per_token": flops,
        "product_rate": {name: Spread.of([2e11] * 3).to_dict() for name in shares},
        "share_of_product_rate": shares,
        "peak_bytes": 3 << 29,
    }


def report_of(*rows):
    add_growth(rows)
    machine = {"cpus": 2, "processor": "x", "tensorflow": "2.20.0"}
    return {"machine": machine, "rounds": 3, "rows": rows}


def test_time_and_arithmetic_stand_beside_each_other_relative_to_the_first_row():
    rows = [
        speed("train", 8000.0, 100, float32=0.5, bfloat16=0.25),
        speed("evaluate", 1000.0, 40, float32=0.4, bfloat16=0.2),
        speed("evaluate", 400.0, 60, float32=0.24, bfloat16=0.12),
    ]
    lines = describe(report_of(*rows)).splitlines()
    assert lines[1] == "large products, in 10^9 operations per second: float32 200, bfloat16 200"
    first, last = (" ".join(lines[index].split()) for index in (3, 5))
    assert first.endswith(" 100 8,000 4,000 - 16,000 0.125 1.00 1.00 50.0% 25.0% 1.5 GiB")
    assert last.endswith(" 60 400 200 - 800 2.5 2.50 1.50 24.0% 12.0% 1.5 GiB")


def test_a_peer_has_its_columns():
    row = speed("train", 900.0, 100, float32=0.5, bfloat16=0.25)
    row["peer"] = {
        "name": "hugging_face",
        "variant": "bfloat16",
        "tokens_per_second": Spread.of([300.0, 310.0, 290.0]).to_dict(),
        "times_faster": Spread.of([3.0, 2.5, 3.2]).to_dict(),
        "peak_bytes": 1 << 30,
    }
    line = describe(report_of(row)).splitlines()[3]
    assert line.endswith("hugging_face, bfloat16       300   3.00  2.50 - 3.20  1.0 GiB")


def test_starts_have_a_table_of_their_own():
    row = {"suite": "compile", "shape": "txl --help", "seconds": Spread.of([0.25]).to_dict()}
    lines = describe(report_of(row)).splitlines()
    assert "from the start of a process to" in lines[1]
    assert lines[2].split() == ["txl", "--help", "0.25", "0.25", "-", "0.25"]


@pytest.mark.slow
def test_every_suite_is_measured(capsys, tmp_path):
    (tmp_path / "text.txt").write_bytes(b"one two three\n" * 50)
    more = ("--rounds", "1", "--turn-seconds", "0.01", "--memory-lengths", "4,8", "--rows", "2")
    suites = ("train", "evaluate", "generate", "prepare", "read", "compile")
    text = ("--text", str(tmp_path / "text.txt"), "--tokenizer", "bytes")
    assert benchmark(*suites, *more, *text, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["suite"] for row in rows] == [
        *("train", "train", "evaluate", "evaluate", "generate", "generate"),
        *("prepare", "read", "read", "compile", "compile", "compile"),
    ]
    for row in rows[:9]:
        assert row["tokens_per_second"]["median"] > 0.0
        assert row["peak_bytes"] > 100 << 20
    for row in rows[:6]:
        assert 0.0 < row["share_of_product_rate"]["float32"]["median"] < 1.0
        assert row["product_rate"]["bfloat16"]["median"] > 1e8
    help_seconds, import_seconds, first_step = (row["seconds"]["median"] for row in rows[9:])
    assert 0.0 < help_seconds < import_seconds < first_step


@pytest.mark.slow
def test_a_peer_takes_turns(capsys, tmp_path):
    python = write_fake_python(tmp_path)
    peer = ("--against", "hugging_face", "--peer-python", python)
    more = ("--rounds", "2", "--turn-seconds", "0.01", "--rows", "3")
    assert benchmark("evaluate", *more, *peer, "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    peer = row["peer"]
    assert (peer["name"], peer["variant"]) == ("hugging_face", "bfloat16")
    assert peer["tokens_per_second"]["rounds"] == [12.0, 12.0]
    own = row["tokens_per_second"]["rounds"]
    assert peer["times_faster"]["rounds"] == [each / 12.0 for each in own]
