"""The job that measures recall: its figures, files and refusals."""

import json
import math

import numpy as np
import pytest

import txl_tf
from pipelines.analysis.recall_measurement import recall_figures
from pipelines.command_line import main
from pipelines.workdir import Workdir, data_identity
from tests.pipelines.small_experiments import MODEL
from tests.pipelines.txl_process import run_txl
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer
from txl_tf.evaluation.passkeys import KeyPattern, PasskeyDocuments, PasskeySentences
from txl_tf.models.language_model import create_model
from txl_tf.run_description import identity
from txl_tf.training.checkpoint_store import CheckpointStore

T, M, STEP = 16, 40, 7
LINES = [b"a line of the text, number %d, with %s words\n" % (n, b"many " * n) for n in range(9)]
EXPERIMENT = {
    # Wide weights, so that what is read makes a difference.
    "model": {**MODEL, "memory_length": M, "initializer_stddev": 0.5},
    "training": {"global_batch_size": 4, "num_steps": 40, "jit_compile": False},
    "optimizer": {"warmup_steps": 5},
    "evaluation": {"batch_size": 4},
}
QUICK = ("--documents", "3", "--distances", "0,2,5", "--batch-size", "2", "--choices", "4")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data set of lines, with a split that is one document."""
    folder = tmp_path_factory.mktemp("lines") / "data"
    splits = {"train": LINES, "valid": LINES[::-1], "whole": [b"".join(LINES)]}
    prepare_dataset(splits, ByteTokenizer(), str(folder), "lines")
    return folder


@pytest.fixture(scope="module")
def workdir(data, tmp_path_factory):
    """A run with weights as if it were trained."""
    experiment = ExperimentConfig.from_dict(EXPERIMENT)
    workdir = Workdir(str(tmp_path_factory.mktemp("runs") / "run"))
    dataset = PreparedDataset.open(str(data))
    description = data_identity(dataset.manifest)
    workdir.begin(experiment, description)
    model = create_model(experiment.model)
    arrays = {f"model/{variable.path}": variable.numpy() for variable in model.weights}
    CheckpointStore(workdir.checkpoints, identity(experiment, description)).save(STEP, arrays)
    return workdir.folder


def command(workdir, out, *more):
    return ["analyze", "recall", "--workdir", str(workdir), "--out", str(out), *QUICK, *more]


@pytest.fixture(scope="module")
def report(workdir, data, tmp_path_factory):
    """The folder that the job makes, and what is in its report."""
    out = tmp_path_factory.mktemp("analysis") / "out"
    more = ("--memory", f"0,{M}", "--data", str(data), "--positions", "0,1,30")
    assert main(command(workdir, out, *more)) == 0
    return out, json.loads((out / "recall.json").read_text())


def test_the_report_has_a_figure_for_each_distance_and_memory(report):
    _, figures = report
    rows = figures["recall"]
    pairs = [(each["memory_length"], each["distance_segments"]) for each in rows]
    assert pairs == [(length, distance) for length in (0, M) for distance in (0, 2, 5)]
    nearest = len(" A0. Again, the key is")
    assert [each["key_distance_tokens"] for each in rows[:3]] == [
        nearest + distance * T for distance in (0, 2, 5)
    ]
    assert figures["step"] == STEP and figures["segment_length"] == T
    assert figures["document_tokens"] % T == 0
    assert figures["choice_chance"] == 0.25 and figures["exact_chance"] == 1 / 260
    # Two layers of memory and segment.
    assert figures["reach_tokens"] == [2 * (T - 1), 2 * (M + T - 1)]


def test_nats_of_the_key_are_those_of_scoring_the_text(report, workdir):
    _, figures = report

    def encode(text):
        return np.frombuffer(text.encode(), np.uint8)

    sentences = PasskeySentences.parse(figures["statement"], figures["question"])
    filler = encode(" " + figures["filler"])
    documents = PasskeyDocuments(
        encode, sentences, KeyPattern("A0"), filler, num_choices=4, seed=figures["seed"]
    )
    lm = txl_tf.load(str(workdir))
    num_answer = len(" A0")
    for row in figures["recall"][3:]:
        nats = []
        for number in range(3):
            distance = row["distance_segments"] * T
            num_tokens = figures["document_tokens"] - num_answer + 1
            document = documents.document(number, distance, num_tokens)
            text = bytes([*document.prompt, *document.answers[0]]).decode()
            nats.append(lm.score(text).nats[-num_answer:].sum())
        assert row["key_nats"] == pytest.approx(np.mean(nats), rel=1e-5)


def test_without_memory_a_key_of_another_segment_has_no_influence(report):
    _, figures = report
    without, with_memory = (
        [row["key_nats"] for row in figures["recall"] if row["memory_length"] == length]
        for length in (0, M)
    )
    # The documents differ only in what is out of reach.
    assert without[1] == without[2]
    assert len(set(with_memory)) == 3


def test_losses_by_position_are_those_of_each_place(report, workdir, data):
    _, figures = report
    losses = figures["loss_by_position"]
    assert losses["num_documents"] == len(LINES) and losses["longest"] == max(map(len, LINES))
    by_length = {each["memory_length"]: each["positions"] for each in losses["by_memory"]}
    assert list(by_length) == [0, M]
    nats = txl_tf.load(str(workdir)).score(b"".join(LINES[::-1]).decode()).nats
    lengths = [len(line) for line in LINES[::-1]]
    positions = np.concatenate([np.arange(length) for length in lengths])
    for bucket in by_length[M]:
        last = math.inf if bucket["last"] is None else bucket["last"]
        inside = (positions >= bucket["first"]) & (positions <= last) & np.isfinite(nats)
        assert bucket["num_tokens"] == inside.sum()
        # Rows that are read side by side have the memory of one row.
        assert bucket["nats_per_token"] == pytest.approx(nats[inside].mean(), rel=1e-5)
    assert [bucket["first"] for bucket in by_length[0]] == [0, 1, 30]
    assert by_length[0] != by_length[M]


def test_charts_are_drawn_and_nothing_else_is_left(report):
    out, _ = report
    names = sorted(path.name for path in out.iterdir())
    assert names == ["loss_by_position.png", "recall.json", "recall.png"]
    for name in names[::2]:
        content = (out / name).read_bytes()
        assert content.startswith(b"\x89PNG\r\n") and len(content) > 5000
    assert [path.name for path in out.parent.iterdir()] == ["out"]


@pytest.mark.slow
def test_the_same_command_has_the_same_figures_and_files(report, workdir, tmp_path, capsys):
    out, figures = report
    assert main(command(workdir, tmp_path / "out", "--json")) == 0
    # By default without memory and with that of the run.
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "out" / "recall.json").read_text())
    assert printed == {**figures, "loss_by_position": None}
    assert (tmp_path / "out" / "recall.png").read_bytes() == (out / "recall.png").read_bytes()


def test_accuracies_ranks_and_probabilities_of_known_scores():
    nats = -np.log([[0.5, 0.3, 0.2], [0.1, 0.6, 0.05], [0.2, 0.2, 0.1], [0.02, 0.2, 0.1]])
    figures = recall_figures(nats, np.array([True, False, True, False]), [5, 7, 6, 5])
    assert figures["exact_accuracy"] == 0.5
    assert figures["choice_accuracy"] == 0.25  # one that is as likely comes before
    assert figures["mean_rank"] == (1 + 2 + 2 + 3) / 4
    assert figures["key_nats"] == pytest.approx(nats[:, 0].mean())
    expected = np.mean([0.5, 0.1 / 0.75, 0.2 / 0.5, 0.02 / 0.32])
    assert figures["key_probability_among_choices"] == pytest.approx(expected)
    assert figures["key_distance_tokens"] == 7


def test_text_to_train_on_has_a_document_on_each_line(tmp_path, capsys):
    file, filler = tmp_path / "text.txt", tmp_path / "filler.txt"
    filler.write_text("one two\nthree\n")
    sentences = ("--statement", "it is KEY!", "--question", "what?KEY.", "--keys", "red,blue")
    options = ("--filler", str(filler), "--documents", "20", "--distances", "1,3")
    words = ["analyze", "recall", "--write-text", str(file), *sentences, *options]
    assert main([*words, "--segment-length", "10", "--choices", "2"]) == 2
    assert "--choices 2" in capsys.readouterr().err
    assert main([*words, "--segment-length", "10"]) == 0
    assert "20 documents" in capsys.readouterr().out
    lines = file.read_text().splitlines()
    assert len(lines) == 20
    found = set()
    for line in lines:
        before, _, answer = line.partition(" what?")
        key = answer.removesuffix(".")
        assert key in ("red", "blue") and before.count(f"it is {key}!") == 1
        found.add(len(before.partition(f"it is {key}!")[2]))
    assert found == {10, 30}
    assert main(words) == 73


@pytest.mark.parametrize(
    ("more", "exit_code", "word"),
    [
        (["--distances", "2,1"], 2, "--distances 2,1"),
        (["--distances", "-1"], 2, "--distances -1"),
        (["--memory", "4,4"], 2, "--memory 4,4"),
        (["--memory", "x"], 2, "--memory x"),
        (["--documents", "0"], 2, "--documents 0"),
        (["--choices", "261"], 2, "There are fewer keys (260)"),
        (["--key-pattern", "A" * 100], 2, "at most 2,147,483,647 keys"),
        (["--keys", "a,b,a,c"], 2, "different words"),
        (["--statement", "The key."], 2, "`statement`"),
        (["--question", "KEY"], 2, "`question`"),
        (["--keys", "a,b,c," + "d" * T], 2, "more than a segment of 16"),
        (["--split", "valid"], 2, "--split valid"),
        (["--positions", "0,4"], 2, "--positions"),
        (["--filler-split", "train"], 2, "--filler-split"),
        (["--segment-length", "4"], 2, "--segment-length 4"),
        (["--filler", "nowhere.txt"], 66, "nowhere.txt"),
        (["--data", "nowhere"], 66, "nowhere"),
        (["--data", "DATA", "--positions", "1,4"], 2, "The first position is 0."),
        (["--data", "DATA", "--split", "exam"], 2, "exam"),
        (["--data", "DATA", "--filler-split", "exam"], 2, "exam"),
        (["--data", "DATA", "--split", "whole"], 78, "--one-document-per line"),
        (["--step", "3"], 2, "There is no checkpoint of step 3."),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_what_makes_no_sense_is_refused_and_nothing_written(
    workdir, data, tmp_path, capsys, monkeypatch, more, exit_code, word
):
    monkeypatch.chdir(tmp_path)
    more = [str(data) if each == "DATA" else each for each in more]
    assert main(command(workdir, tmp_path / "out", *more)) == exit_code
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 3
    assert word in "\n".join(lines)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "exit_code", "word"),
    [
        (["--workdir", "nowhere", "--out", "o"], 66, "nowhere"),
        (["--workdir", "nowhere"], 2, "--out"),
        (["--out", "o"], 2, "--workdir"),
        (["--write-text", "t", "--workdir", "w"], 2, "not allowed with"),
        (["--write-text", "t", "--memory", "4"], 2, "--memory"),
        (["--write-text", "t", "--json"], 2, "--json"),
        (["--write-text", "t", "--keys", "a", "--key-pattern", "A"], 2, "not allowed with"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_uses_that_do_not_go_together(tmp_path, capsys, monkeypatch, words, exit_code, word):
    monkeypatch.chdir(tmp_path)
    assert main(["analyze", "recall", *words]) == exit_code
    assert word in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_figures_need_matplotlib(workdir, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(command(workdir, tmp_path / "out")) == 2
    assert "pip install -e '.[plots]'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_is_trained_to_recall_by_the_commands(tmp_path):
    train, data, run, out = (tmp_path / name for name in ("train.txt", "data", "run", "out"))
    sentences = ("--statement", "=KEY.", "--question", "?KEY.", "--key-pattern", "A")
    options = ("--distances", "0,1", "--segment-length", "16", "--documents", "4000")
    filler = tmp_path / "filler.txt"
    filler.write_text("ab")
    sentences += ("--filler", filler)
    commands = [
        ("analyze", "recall", "--write-text", train, *sentences, *options),
        (
            *("prepare", "--train-file", train, "--one-document-per", "line"),
            *("--tokenizer", "bytes", "--out", data),
        ),
        ("verify", data),
    ]
    for words in commands:
        finished = run_txl(*words)
        assert finished.returncode == 0, finished.stderr
    model = {**MODEL, "hidden_dim": 32, "head_dim": 16, "memory_length": 48, "dropout": 0.0}
    training = {**EXPERIMENT["training"], "global_batch_size": 32, "num_steps": 1600}
    experiment = {
        "model": {**model, "pre_norm": True, "initializer_stddev": 0.06},
        "training": {**training, "document_boundaries": "mask"},
        # With the default `beta_2`, two of three seeds do not learn it.
        "optimizer": {
            **{"learning_rate": 5e-3, "beta_2": 0.98},
            **{"warmup_steps": 50, "clip_norm": 0.25},
        },
    }
    config = tmp_path / "config.json"
    config.write_text(json.dumps(experiment))
    finished = run_txl("train", "--config", config, "--data", data, "--workdir", run)
    assert finished.returncode == 0, finished.stderr
    probe = ("--distances", "0,1", "--memory", "0,48", "--out", out, "--json")
    finished = run_txl("analyze", "recall", "--workdir", run, *sentences, *probe)
    assert finished.returncode == 0, finished.stderr
    accuracy = {
        (row["memory_length"], row["distance_segments"]): row["choice_accuracy"]
        for row in json.loads(finished.stdout)["recall"]
    }
    assert accuracy[0, 0] > 0.9 and accuracy[48, 0] > 0.9 and accuracy[48, 1] > 0.9
    assert accuracy[0, 1] < 0.35
