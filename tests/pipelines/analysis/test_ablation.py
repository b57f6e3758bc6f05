"""`txl analyze ablation`: the runs of a study, their figures, and the table."""

import json

import pytest

from pipelines.analysis.ablation import (
    STUDIES_FOLDER,
    attention_length,
    load_study,
    row_figures,
)
from pipelines.command_line import main
from tests.pipelines.conftest import EXPERIMENT
from tests.pipelines.txl_process import run_txl
from txl_tf.errors import UsageError

NUM_STEPS = 60
WITHOUT_MEMORY = ["model.recurrence=false", "model.memory_length=0"]
STUDY = {
    "experiment": {
        **EXPERIMENT,
        "training": {**EXPERIMENT["training"], "num_steps": NUM_STEPS},
    },
    "seeds": [1, 2],
    "rows": [{"name": "with"}, {"name": "without", "set": WITHOUT_MEMORY}],
    "evaluation": {
        "num_tokens": 300,
        "memory_lengths": [24],
        "window_lengths": [24],
        "window_stride": 8,
    },
}
RESULTS = "evaluations/valid/results.jsonl"
RUNS = [f"{row}/seed-{seed}" for seed in (1, 2) for row in ("with", "without")]


def load(folder, **changes):
    path = folder / "study.json"
    path.write_text(json.dumps({**STUDY, **changes}))
    return load_study(str(path), [])


@pytest.mark.parametrize("name", [path.stem for path in STUDIES_FOLDER.glob("*.toml")])
def test_every_named_study_is_valid(name):
    study = load_study(name, [])
    runs = study.runs()
    assert len({run.name for run in runs}) == len(study.rows) * len(study.seeds) > 0
    assert all(len(run.evaluations) > 1 for run in runs)


def test_a_row_changes_its_own_settings_and_the_seed(tmp_path):
    study = load(tmp_path)
    with_memory, without, other_seed, _ = (run.experiment for run in study.runs())
    assert without == with_memory.with_overrides(WITHOUT_MEMORY)
    assert other_seed == with_memory.with_overrides(["training.seed=2"])


def test_lengths_are_of_the_memory_or_without_one_of_windows(tmp_path):
    evaluation = {"memory_lengths": [8, 0, 32], "window_lengths": [8, 32], "window_stride": 4}
    runs = {run.name: run for run in load(tmp_path, evaluation=evaluation).runs()}
    with_memory = runs["with/seed-1"].evaluations
    assert [*map(attention_length, with_memory)] == [16, 0, 8, 32]
    assert [each.same_length for each in with_memory] == [False, False, True, True]
    windows = runs["without/seed-1"].evaluations
    assert [*map(attention_length, windows)] == [16, 8, 32]
    assert {each.window_stride_tokens for each in windows} == {4}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": [1, 1]}, "`seeds` must have at least"),
        ({"rows": [{"name": "a"}, {"name": "a"}]}, "`rows` must have at least"),
        ({"rows": [{"name": "../elsewhere"}]}, "begin with a letter or digit"),
        ({"rows": [{"name": "a", "set": ["model.depth=2"]}]}, "Received: model.depth=2"),
        ({"evaluation": {"window_lengths": [2], "window_stride": 4}}, "`window_lengths`"),
        ({"experiment": 7}, "experiment=7"),
    ],
)
def test_a_wrong_study_is_refused(tmp_path, changes, message):
    with pytest.raises(UsageError, match=message):
        load(tmp_path, **changes)


def arguments_of(folder, data_folder):
    path = folder / "study.json"
    path.write_text(json.dumps(STUDY))
    return [
        *("analyze", "ablation", "--study", str(path)),
        *("--data", str(data_folder), "--out", str(folder / "out")),
    ]


@pytest.mark.slow
def test_a_study_is_resumed_and_nothing_is_trained_twice(data_folder, tmp_path):
    out = tmp_path / "out"
    arguments = arguments_of(tmp_path, data_folder)
    finished = run_txl(*arguments)
    assert finished.returncode == 0, finished.stderr
    rows = json.loads((out / "table.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["with", "without"]
    for row in rows:
        assert row["seeds"] == [1, 2]
        assert row["perplexity_best"] <= row["perplexity_initial"] < 256
        assert [point["length"] for point in row["curve"]] == [16, 24]
        # Another seed is another run.
        assert len(set(row["curve"][0]["perplexities"])) == 2
        assert f"{row['perplexity_initial']:.2f}" in finished.stdout

    ledgers = [(out / run / "ledger.jsonl").read_bytes() for run in RUNS]
    assert [len(ledger.splitlines()) for ledger in ledgers] == [1 + NUM_STEPS] * 4
    (out / RUNS[1] / RESULTS).unlink()
    again = run_txl(*arguments)
    assert again.stderr.count("attention length") == 2
    assert again.stdout == finished.stdout
    assert [(out / run / "ledger.jsonl").read_bytes() for run in RUNS] == ledgers
    other = run_txl(*arguments, "--set", "model.dropout=0.2")
    assert other.returncode == 78
    assert "model.dropout (stored 0.1, now 0.2)" in other.stderr


@pytest.mark.parametrize(
    ("changes", "exit_code", "message"),
    [
        (["--set", "model.depth=2"], 2, "model.depth"),
        (["--data", "nowhere"], 66, "nowhere"),
    ],
)
def test_errors_are_found_before_anything_is_trained(
    tmp_path, data_folder, changes, exit_code, message, capsys
):
    assert main([*arguments_of(tmp_path, data_folder), *changes]) == exit_code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_attention_length_is_the_shortest_that_reaches_the_best(tmp_path):
    lengths = {"memory_lengths": [8, 32, 64], "window_lengths": [8, 32, 64]}
    study = load(tmp_path, seeds=[1, 2, 3], evaluation=lengths)
    runs = [run for run in study.runs() if run.row == study.rows[0]]
    # At the length of training, 16, and at 8, 32 and 64, which is the best by less than 0.1 %.
    curve = (27.0, 28.0, 26.01, 26.0)
    perplexities = [[value + shift for value in curve] for shift in (-0.1, 0.0, 0.1)]
    row = row_figures(runs, perplexities)
    assert (row["attention_length"], row["perplexity_initial"]) == (32, pytest.approx(27.0))
    assert row["perplexity_best"] == pytest.approx(26.0)
