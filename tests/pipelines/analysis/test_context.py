"""The job that measures a group of runs: its figures, files and refusals."""

import json
import math

import numpy as np
import pytest

from pipelines.analysis.context import read_runs
from pipelines.command_line import main
from tests.pipelines.conftest import EXPERIMENT
from tests.pipelines.small_experiments import TOY_DATA
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.errors import UsageError
from txl_tf.model_folder import Workdir, data_identity
from txl_tf.models import create_model

TRANSFORMER = {**EXPERIMENT["model"], "segment_length": 8, "memory_length": 6}
LSTM = {
    "kind": "lstm",
    "vocabulary_size": 256,
    "num_layers": 1,
    "hidden_dim": 8,
    "segment_length": 8,
}
CONTEXTS = (4, 8, 12)
STEP = 7


def stored_run(folder, model_values, data_folder):
    """A run with weights as if it were trained; returns its model."""
    # Wide weights, so that contexts make a difference.
    values = {**EXPERIMENT, "model": {**model_values, "initializer_stddev": 0.5}}
    experiment = ExperimentConfig.from_dict(values)
    workdir = Workdir(str(folder))
    data = data_identity(PreparedDataset.open(str(data_folder)).manifest)
    run = workdir.begin(experiment, data)
    model = create_model(experiment.model)
    arrays = {f"model/{variable.path}": variable.numpy() for variable in model.weights}
    run.checkpoints(workdir.folder).save(STEP, arrays)
    return model


@pytest.fixture(scope="module")
def runs(data_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    models = {"xl": TRANSFORMER, "lstm": LSTM}
    return {
        name: (folder / name, stored_run(folder / name, values, data_folder))
        for name, values in models.items()
    }


def command(runs, data_folder, out, *more):
    workdirs = [word for folder, _ in runs.values() for word in ("--workdir", str(folder))]
    lengths = ["--context", ",".join(map(str, CONTEXTS)), "--tokens", "40"]
    shared = ["--data", str(data_folder), "--out", str(out)]
    return ["analyze", "context", *workdirs, *shared, *lengths, *more]


@pytest.fixture(scope="module")
def report(runs, data_folder, tmp_path_factory):
    """The job's output folder and its parsed report."""
    out = tmp_path_factory.mktemp("analysis") / "out"
    assert main(command(runs, data_folder, out, "--seed", "3")) == 0
    assert [*out.parent.iterdir(), *out.iterdir()] == [out, out / "context.json"]
    return out, json.loads((out / "context.json").read_text())


def drawn_windows(data_folder):
    """The tokens that the seed 3 draws, each with the longest context before it."""
    dataset = PreparedDataset.open(str(data_folder))
    possible = dataset.num_tokens("valid") - CONTEXTS[-1]
    numbers = np.random.default_rng(3).choice(possible, 40, replace=False)
    return np.stack([dataset.read_tokens("valid", at, at + CONTEXTS[-1] + 1) for at in numbers])


def test_perplexities_equal_those_of_windows_read_directly(report, runs, data_folder):
    _, figures = report
    tokens = drawn_windows(data_folder)
    # 4 tokens are less than a segment, so both models read them as one.
    for (_, model), run in zip(runs.values(), figures["runs"], strict=True):
        nll, _ = model.score(tokens[:, 8:12], tokens[:, 9:13], model.initial_memory(40))
        expected = math.exp(np.mean(nll[:, -1]))
        assert run["perplexities"][0] == pytest.approx(expected, rel=1e-5)
        assert len(set(run["perplexities"])) == len(CONTEXTS)


def test_the_report_names_runs_steps_and_measures(report, runs):
    _, figures = report
    assert [run["name"] for run in figures["runs"]] == ["xl", "lstm"]
    assert [run["step"] for run in figures["runs"]] == [STEP, STEP]
    for (_, model), run in zip(runs.values(), figures["runs"], strict=True):
        assert run["num_parameters"] == model.count_params()
    assert figures["step_size"] == 4
    groups = figures["relative_effective_context_length"]
    assert [group["ratio"] for group in groups] == [0.1, 0.5, 1.0]
    assert [group["num_hard_tokens"] for group in groups] == [4, 20, 40]
    for group in groups:
        assert all(run["length"] in CONTEXTS for run in group["runs"].values())


@pytest.mark.slow
def test_contexts_are_read_with_the_memory_of_the_option(report, runs, data_folder, tmp_path):
    _, figures = report
    more = ("--seed", "3", "--context-memory", "12")
    assert main(command(runs, data_folder, tmp_path / "out", *more)) == 0
    longer, lstm = json.loads((tmp_path / "out" / "context.json").read_text())["runs"]
    assert (longer["memory_length"], figures["runs"][0]["memory_length"]) == (12, 6)
    # An LSTM has no memory.
    assert lstm["perplexities"] == figures["runs"][1]["perplexities"]
    # Memory holds the whole context, so the figures equal one pass.
    tokens, (_, model) = drawn_windows(data_folder), runs["xl"]
    nll, _ = model.score(tokens[:, :-1], tokens[:, 1:], model.initial_memory(40, 0))
    assert longer["perplexities"][-1] == pytest.approx(math.exp(np.mean(nll[:, -1])), rel=1e-5)


def test_the_seed_decides_the_figures(report, runs, data_folder, tmp_path, txl):
    lstm, out = {"lstm": runs["lstm"]}, tmp_path / "out"
    repeated = json.loads(txl(*command(lstm, data_folder, out, "--seed", "3", "--json")))
    assert repeated == json.loads((out / "context.json").read_text())
    assert repeated["runs"] == report[1]["runs"][1:]
    table = txl(*command(lstm, data_folder, tmp_path / "other"))
    assert "Relative effective context length" in table and "lstm" in table
    perplexity = repeated["runs"][0]["perplexities"][0]
    assert f"{perplexity:.3f}" not in table


@pytest.mark.parametrize(
    ("more", "exit_code", "word"),
    [
        (["--context", "10,5"], 2, "--context 10,5"),
        (["--context", "10,20,40"], 2, "--context 10,20,40"),
        (["--tokens", "0"], 2, "--tokens 0"),
        (["--split", "exam"], 2, "exam"),
        (["--context", "4,100000"], 2, "100000 tokens before it"),
    ],
)
def test_wrong_arguments_are_refused_and_write_nothing(
    runs, data_folder, tmp_path, txl, more, exit_code, word
):
    txl(*command(runs, data_folder, tmp_path / "out", *more), code=exit_code, says=word)
    no_memory = command({"lstm": runs["lstm"]}, data_folder, tmp_path / "out")
    txl(*no_memory, "--context-memory", "4", code=2, says="None of the models has a memory.")
    assert list(tmp_path.iterdir()) == []


def test_runs_are_named_by_the_parts_in_which_their_folders_differ(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("study/a", "study/run", "run"):
        data = {**TOY_DATA, "vocabulary_size": 256}
        Workdir(folder).begin(ExperimentConfig.from_dict(EXPERIMENT), data)
    assert [run.name for run in read_runs(["study/a", "run"])] == ["a", "run"]
    paths = ["study/run", "run"]
    assert [run.name for run in read_runs(paths)] == paths
    with pytest.raises(UsageError, match="A run is named twice"):
        read_runs(["run", "./run"])
