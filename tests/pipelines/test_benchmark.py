"""`txl benchmark`: its cases, its table, and small runs of all suites."""

import json
import stat
import sys
from pathlib import Path

import pytest

import pipelines
from pipelines.benchmark import add_arguments, cases_of, describe, spread
from pipelines.command_line import JobParser, main
from txl_tf.errors import UsageError

TINY = {
    **{"num_layers": 1, "hidden_dim": 8, "num_heads": 2, "head_dim": 4, "intermediate_dim": 12},
    **{"segment_length": 4, "memory_length": 4},
}
LSTM = Path(pipelines.__file__).parent / "configs" / "studies" / "novels_recl" / "lstm.toml"
SHORT = ("--rounds", "2", "--turn-seconds", "0.01", "--json")
# It answers as a worker does; in bfloat16 it is twice as fast.
FAKE_PYTHON = """#!{python}
import json, sys
request = json.loads(sys.stdin.readline())
seconds = {{"float32": 0.5, "bfloat16": 0.25}}[request["dtype"]]
print(json.dumps({{"peak_bytes": 1 << 20}}), flush=True)
for line in sys.stdin:
    tokens = int(line) * request["num_rows"]
    answer = {{"seconds": int(line) * seconds, "tokens": tokens, "peak_bytes": 1 << 20}}
    print(json.dumps(answer), flush=True)
"""


def cases(suite, *words):
    parser = JobParser(prog="txl benchmark")
    add_arguments(parser)
    return cases_of(suite, parser.parse_args([suite, *words]))


def benchmark(*words):
    settings = [word for name, value in TINY.items() for word in ("--set", f"model.{name}={value}")]
    return main(["benchmark", *words, *SHORT, *settings])


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["none/python"], 66, "none/python"),
        (["sh", "--set", "model.pre_norm=true"], 2, "plain Transformer-XL"),
    ],
)
def test_a_peer_that_cannot_be_measured_is_refused(words, code, message, capsys):
    assert main(["benchmark", "train", "--peer-python", *words]) == code
    assert message in capsys.readouterr().err


def test_lengths_grow_and_arithmetic_with_them():
    found = cases("train", "--segment-lengths", "128,256")
    assert [case.shape.split(", B")[0] for case in found] == [
        "6 x 256, T 128, M 128",
        "6 x 256, T 256, M 256",
    ]
    found = cases("evaluate", "--memory-lengths", "800,1600,3200")
    flops = [case.flops_per_token for case in found]
    # Two products with each key of 12 layers of 512: the rest does not grow.
    assert [each - flops[0] for each in flops[1:]] == [800 * 4 * 12 * 512, 2400 * 4 * 12 * 512]
    assert [case.request["num_rows"] for case in cases("generate")] == [1, 8, 1, 8]
    assert len(cases("evaluate", "--set", "model.memory_length=4")) == 1
    (case,) = cases("evaluate", "--config", "enwik8_base")
    assert "T 80, M 2,100, B 10" in case.shape
    with pytest.raises(UsageError):
        cases("train", "--config", str(LSTM), "--segment-lengths", "8")


def test_the_table_has_time_and_arithmetic_beside_each_other():
    rows = [
        {"suite": "train", "shape": "a", "flops_per_token": 40, "peak_bytes": 3 << 29},
        {"suite": "train", "shape": "b", "flops_per_token": 60, "peak_bytes": 3 << 29},
    ]
    for row, rate in zip(rows, (1000.0, 400.0), strict=True):
        row["tokens_per_second"] = spread([rate / 2, rate, rate * 2])
        peer = {"name": "hugging_face", "dtype": "bfloat16"}
        peer["tokens_per_second"] = peer["times_faster"] = spread([2.0, 3.0, 3.5])
        row["peer"] = peer
    machine = {"cpus": 2, "processor": "x", "tensorflow": "2.20.0"}
    lines = describe({"machine": machine, "rounds": 3, "rows": rows}).splitlines()
    last = " ".join(lines[3].split())
    peer = "hugging_face, bfloat16 3 3.00 2.00 - 3.50"
    assert last == f"train b 400 200 - 800 2.50 1.50 1.5 GiB {peer}"


@pytest.mark.slow
def test_every_suite_is_measured(capsys):
    assert benchmark("train", "evaluate", "generate", "--memory-lengths", "4") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["suite"] for row in rows] == ["train", "evaluate", "generate", "generate"]
    assert all(row["tokens_per_second"]["least"] > 0.0 for row in rows)
    assert all(row["peak_bytes"] > 100 << 20 for row in rows)


@pytest.mark.slow
def test_a_peer_takes_turns_in_its_faster_precision(capsys, tmp_path):
    python = tmp_path / "python-of-peer"
    python.write_text(FAKE_PYTHON.format(python=sys.executable))
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    assert benchmark("evaluate", "--peer-python", str(python)) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    peer, own = row["peer"], row["tokens_per_second"]["rounds"]
    assert (peer["name"], peer["dtype"]) == ("hugging_face", "bfloat16")
    assert peer["tokens_per_second"]["rounds"] == [4.0, 4.0]
    assert peer["times_faster"]["rounds"] == [each / 4.0 for each in own]
