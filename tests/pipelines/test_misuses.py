"""Mistakes that users make: each is answered at once, by what is wrong and by the nearest name."""

import subprocess
import sys

import pytest

from pipelines import train
from pipelines.arguments import load_experiment
from pipelines.command_line import main
from pipelines.configs import NAMED_EXPERIMENTS
from pipelines.workdir import Workdir
from tests.pipelines.small_experiments import TOY_DATA
from tests.test_architecture import ROOT
from txl_tf.data.manifest import FORMAT_VERSION, Manifest, ShardManifest, SplitManifest

_TRAIN = "train --data d --workdir new"
_QUICKSTART = f"{_TRAIN} --config quickstart"
_GENERATE = "generate --workdir run --prompt a"

# The command, its exit code, and what the answer has to say.
_MISUSES = [
    # Misspelt names.
    ("trian", 2, "mean train"),
    ("tokenize", 2, "Known are"),
    ("analyze contxt", 2, "mean context"),
    (f"{_TRAIN} --config quikstart", 66, "mean quickstart"),
    (f"{_QUICKSTART} --work-dir x", 2, "mean --workdir"),
    (f"{_QUICKSTART} --set num_steps=120", 2, "mean training.num_steps"),
    (f"{_GENERATE} --max-token 5 --temprature 1", 2, "mean --temperature"),
    ("prepare --corpus enwiki8 --out o", 2, "mean enwik8"),
    # Values of another kind, or out of range.
    (f"{_QUICKSTART} --set training.num_steps", 2, "--set"),
    (f"{_QUICKSTART} --set model.dropout=2", 2, "model.dropout"),
    (f"{_QUICKSTART} --set training.num_steps={'9' * 5000}", 2, "training.num_steps"),
    (f"{_QUICKSTART} --set optimizer.learning_rate=NaN", 2, "optimizer.learning_rate"),
    (f"{_QUICKSTART} --set model.dropout={'[' * 100_000}", 2, "model.dropout"),
    (f"{_QUICKSTART} --cpu-replicas 1000000", 2, "--cpu-replicas"),
    (f"{_QUICKSTART} --tpu grpc://a", 2, "--tpu"),
    (f"{_QUICKSTART} --init-vocabulary shared", 2, "goes with --init-from"),
    (f"{_GENERATE} --memory-length 4294967296", 2, "--memory-length"),
    ("evaluate --workdir run --data d --set model.num_layers=3", 2, "model.num_layers"),
    ("config --set training.seed=1", 2, "Add --config"),
    # Settings that this machine cannot hold.
    (f"{_QUICKSTART} --set model.memory_length=16777216", 2, "would take"),
    # Wrong places.
    (_TRAIN, 2, "--config"),
    ("train --config text.txt --data d --workdir new", 2, "text.txt"),
    ("generate --workdir text.txt --prompt a", 66, "text.txt"),
    ("export --workdir run --out text.txt", 2, "text.txt"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run without a step, a text, and a data set `d` that has only its manifest."""
    folder = tmp_path_factory.mktemp("misuses")
    Workdir(str(folder / "run")).begin(
        load_experiment("quickstart", []), {**TOY_DATA, "vocabulary_size": 256}
    )
    (folder / "text.txt").write_text("some text\n" * 100)
    (folder / "d").mkdir()
    shard = ShardManifest(
        file="train-00000-of-00001.tfrecord", tokens=9, records=1, bytes=9, sha256="0" * 64
    )
    counts = dict.fromkeys(("tokens", "bytes", "characters"), 9)
    Manifest(
        format_version=FORMAT_VERSION,
        corpus_name="none",
        tokenizer_kind="bytes",
        tokenizer_sha256="0" * 64,
        vocabulary_size=256,
        token_bytes=1,
        tokens_per_record=9,
        splits=(SplitManifest(name="train", words=1, documents=1, shards=(shard,), **counts),),
    ).write(str(folder / "d"))
    return folder


@pytest.fixture
def answer(folder, monkeypatch, capsys):
    """A function that runs a job in the folder; returns its exit code and what it said."""
    monkeypatch.chdir(folder)

    def run(*words):
        code = main([str(word) for word in words])
        lines = [line for line in capsys.readouterr().err.split("\n") if line]
        assert len(lines) <= 3
        assert all(line.isprintable() and len(line) <= 420 for line in lines)
        return code, " ".join(lines)

    return run


@pytest.mark.parametrize(
    ("command", "exit_code", "words"), _MISUSES, ids=lambda value: str(value)[:60]
)
def test_misuse_is_answered(answer, command, exit_code, words):
    code, said = answer(*command.split())
    assert code == exit_code, said
    assert words in said


PROGRAM = """
import sys
from pipelines.command_line import main
assert main(sys.argv[1:]) == 2
print({"tensorflow", "keras", "jax"} & set(sys.modules))
"""


@pytest.mark.parametrize(
    "command",
    [
        f"{_QUICKSTART} --set model.dropout=2",
        f"{_GENERATE} --top-p 90",
        "prepare --text text.txt --out o --shard-megabytes 0",
    ],
)
def test_arguments_are_checked_without_tensorflow(folder, command):
    words = [sys.executable, "-W", "ignore", "-c", PROGRAM, *command.split()]
    environment = {"PYTHONPATH": str(ROOT)}
    finished = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    assert finished.stdout == "set()\n", finished.stderr


@pytest.mark.parametrize("name", NAMED_EXPERIMENTS)
def test_every_named_experiment_begins_to_train_on_a_tpu(answer, monkeypatch, name):
    monkeypatch.setattr(train, "run", lambda arguments: None)
    code, said = answer(*_TRAIN.split(), "--config", name, "--tpu", "local")
    assert code == 0, said
