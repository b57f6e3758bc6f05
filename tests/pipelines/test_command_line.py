"""The command line: help and mistakes, each answered at once with what to do."""

import functools
import importlib
import os
import re
import shlex
import subprocess
import sys

import pytest

from pipelines.command_line import JOBS, main
from pipelines.configs import NAMED_EXPERIMENTS, load_experiment
from pipelines.jobs import train
from pipelines.jobs.analyze import ANALYSES
from tests.data.manifests import manifest
from tests.pipelines.small_experiments import TOY_DATA
from tests.source_tree import ROOT
from txl_tf.model_folder import Workdir

COMMANDS = [*((job,) for job in JOBS), *(("analyze", analysis) for analysis in ANALYSES)]
MAX_LINES, MAX_COLUMNS = 44, 80


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_fits_a_screen_and_its_usage_is_a_command_that_is_taken(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(MAX_COLUMNS))
    with pytest.raises(SystemExit, match=r"^0$"):
        main([*command, "--help"])
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert len(lines) <= MAX_LINES and max(map(len, lines)) <= MAX_COLUMNS
    summary = ANALYSES[command[1]] if len(command) > 1 else JOBS[command[0]]
    assert f"{summary[0].upper()}{summary[1:]}." in " ".join(text.split())
    if command == ("analyze",):
        return  # it lists the analyses, which have examples
    usage = re.match(r"usage: txl (.*?) \[options\]", text, re.DOTALL)[1]
    module = importlib.import_module(
        f"pipelines.{'analysis' if command[1:] else 'jobs'}.{command[-1]}"
    )
    checked = []
    monkeypatch.setattr(module, "check_arguments", checked.append)
    monkeypatch.setattr(module, "run", lambda arguments: None)
    assert main(shlex.split(usage)) == 0
    assert checked


_TRAIN = "train --data d --workdir new"
_QUICKSTART = f"{_TRAIN} --config quickstart"
_GENERATE = "generate --workdir run --prompt a"

# The command, its exit code, and a part of its message.
_MISUSES = [
    # Misspelt names.
    ("trian", 2, "mean train"),
    ("no-such-job", 2, "Known are"),
    (f"{_TRAIN} --config quikstart", 66, "mean quickstart"),
    (f"{_QUICKSTART} --work-dir x", 2, "mean --workdir"),
    (f"{_QUICKSTART} --set num_steps=120", 2, "mean training.num_steps"),
    (f"{_GENERATE} --max-token 5 --temprature 1", 2, "mean --temperature"),
    ("prepare --corpus enwiki8 --out o", 2, "mean enwik8"),
    # Values of another kind, or out of range.
    (f"{_QUICKSTART} --set training.num_steps", 2, "--set"),
    (f"{_QUICKSTART} --set model.dropout={'[' * 33}{']' * 33}", 2, "model.dropout"),
    (f"{_QUICKSTART} --cpu-replicas 1000000", 2, "--cpu-replicas"),
    (f"{_QUICKSTART} --tpu grpc://a", 2, "--tpu"),
    (f"{_QUICKSTART} --init-vocabulary shared", 2, "need --init-from"),
    (f"{_GENERATE} --memory-length 4294967296", 2, "--memory-length"),
    ("evaluate --workdir run --data d --set model.num_layers=3", 2, "model.num_layers"),
    ("config --set training.seed=1", 2, "Add --config"),
    # Settings that this machine cannot hold.
    (f"{_QUICKSTART} --set model.memory_length=16777216", 2, "would need"),
    # Wrong places.
    (_TRAIN, 2, "--config"),
    ("train --config quickstart --workdir new", 2, "--data"),
    ("train --config text.txt --data d --workdir new", 2, "text.txt"),
    ("train --config quickstart --data d --workdir .", 73, "not the folder of a run"),
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
    manifest().write(str(folder / "d"))
    return folder


@pytest.mark.parametrize(
    ("command", "exit_code", "words"), _MISUSES, ids=lambda value: str(value)[:60]
)
def test_misuse_is_answered(txl, folder, monkeypatch, command, exit_code, words):
    monkeypatch.chdir(folder)
    txl(*command.split(), code=exit_code, says=words)


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
def test_every_named_experiment_begins_to_train_on_a_tpu(txl, folder, monkeypatch, name):
    libraries = []
    monkeypatch.chdir(folder)
    monkeypatch.delenv("TPU_LOAD_LIBRARY", raising=False)
    library = functools.partial(os.environ.get, "TPU_LOAD_LIBRARY")
    monkeypatch.setattr(train, "run", lambda _: libraries.append(library()))
    for tpu in ("local", "grpc://a:1"):
        txl(*_TRAIN.split(), "--config", name, "--tpu", tpu)
    # Only the job that computes on the chips of this machine may load their library.
    assert libraries == [None, "0"]


def test_a_vocabulary_that_is_not_of_the_data_is_78(txl, data_folder, config_file, tmp_path):
    words = ("--config", config_file, "--data", data_folder, "--workdir", tmp_path / "run")
    sizes, says = "model.vocabulary_size=300", "256 token ids, the model 300"
    txl("train", *words, "--set", sizes, code=78, says=says)
