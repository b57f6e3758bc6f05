"""Mistakes that users make: each is answered at once, by what is wrong and by the nearest name."""

import json
import random
import re
import string

import pytest

from pipelines.arguments import load_experiment
from pipelines.configs import NAMED_EXPERIMENTS
from pipelines.workdir import Workdir
from tests.pipelines.arguments_process import STARTS, ArgumentsProcess
from tests.pipelines.small_experiments import TOY_DATA

_MOST_SECONDS = 2.0
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
    (f"{_QUICKSTART} --set model.layers=3", 2, "mean model.num_layers"),
    (f"{_GENERATE} --max-token 5 --temprature 1", 2, "mean --temperature"),
    (f"{_GENERATE} --num-tokens 5", 2, "mean --max-tokens"),
    ("launch --kind tpu_vm", 2, "mean tpu-vm"),
    ("prepare --corpus enwiki8 --out o", 2, "mean enwik8"),
    # Values of another kind, or out of range.
    (f"{_QUICKSTART} --set training.num_steps=many", 2, "training.num_steps"),
    (f"{_QUICKSTART} --set training.num_steps", 2, "--set"),
    (f"{_QUICKSTART} --set model.dropout=2", 2, "model.dropout"),
    (f"{_QUICKSTART} --set training.jit_compile=maybe", 2, "training.jit_compile"),
    (f"{_QUICKSTART} --set optimizer.name=adamm", 2, "adam"),
    (f"{_QUICKSTART} --set training.num_steps={'9' * 5000}", 2, "training.num_steps"),
    (f"{_QUICKSTART} --set optimizer.learning_rate=NaN", 2, "optimizer.learning_rate"),
    (f"{_QUICKSTART} --set optimizer.learning_rate=1e999", 2, "optimizer.learning_rate"),
    (f"{_QUICKSTART} --set model.num_layers=true", 2, "model.num_layers"),
    (f"{_QUICKSTART} --set model.dropout={'[' * 100_000}", 2, "model.dropout"),
    (f"{_QUICKSTART} --set model.num_layers=1000000 --tpu local", 2, "model.num_layers"),
    (f"{_QUICKSTART} --cpu-replicas 1000000", 2, "--cpu-replicas"),
    (f"{_QUICKSTART} --tpu grpc://a", 2, "--tpu"),
    (f"{_GENERATE} --max-tokens 0", 2, "--max-tokens"),
    (f"{_GENERATE} --temperature -1", 2, "--temperature -1"),
    (f"{_GENERATE} --temperature nan", 2, "--temperature"),
    (f"{_GENERATE} --top-p 90", 2, "--top-p 90"),
    (f"{_GENERATE} --top-p 0.9 --beams 3", 2, "--beams with --top-p"),
    (f"{_GENERATE} --memory-length 4294967296", 2, "--memory-length"),
    ("doctor --timeout-seconds nan", 2, "--timeout-seconds"),
    # Settings that this machine cannot hold.
    (f"{_QUICKSTART} --set model.memory_length=16777216", 2, "would take"),
    (f"{_QUICKSTART} --set evaluation.batch_size=16777216", 2, "available"),
    # Wrong places.
    (_TRAIN, 2, "--config"),
    ("train --config quickstart --workdir new", 2, "--data"),
    ("train --config text.txt --data d --workdir new", 2, "text.txt"),
    ("generate --workdir text.txt --prompt a", 66, "text.txt"),
    ("export --workdir d --out o", 66, "d"),
    ("export --workdir run --out text.txt", 2, "text.txt"),
    ("verify nowhere", 66, "nowhere"),
    ("convert --from hugging_face --source nowhere --out o", 66, "nowhere"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("misuses")
    Workdir(str(folder / "run")).begin(
        load_experiment("quickstart", []), {**TOY_DATA, "vocabulary_size": 256}
    )
    (folder / "text.txt").write_text("some text\n" * 100)
    (folder / "d").mkdir()
    return folder


@pytest.fixture(scope="module")
def process(folder):
    with ArgumentsProcess(folder) as process:
        yield process


@pytest.mark.parametrize(
    ("command", "exit_code", "words"), _MISUSES, ids=lambda value: str(value)[:60]
)
def test_misuse_is_answered(process, command, exit_code, words):
    answer = process.run(*command.split()).check()
    assert answer.exit_code == exit_code, answer
    assert words in " ".join(answer.lines), answer
    assert answer.seconds < _MOST_SECONDS


@pytest.mark.parametrize("name", NAMED_EXPERIMENTS)
def test_every_named_experiment_begins_to_train_on_a_tpu(process, name):
    answer = process.run(*_TRAIN.split(), "--config", name, "--tpu", "local").check()
    assert answer.exit_code == STARTS, answer


def misspelt(name, source):
    """The name with one letter left out, doubled, exchanged or changed."""
    place = source.randrange(1, len(name) - 1)
    letter = source.choice(string.ascii_lowercase)
    middle = source.choice(["", name[place] * 2, letter, name[place + 1] + name[place]])
    return name[:place] + middle + name[place + (2 if len(middle) == 2 else 1) :]


def test_misspelt_name_in_a_file_is_answered_by_the_right_one(process, folder):
    path, source = folder / "misspelt.json", random.Random(1)
    experiment = load_experiment("quickstart", []).to_dict()
    for section, fields in experiment.items():
        for name in fields:
            wrong = misspelt(name, source)
            if wrong in fields:
                continue
            changed = {wrong if key == name else key: each for key, each in fields.items()}
            path.write_text(json.dumps({**experiment, section: changed}))
            answer = process.run(*_TRAIN.split(), "--config", path).check()
            assert answer.exit_code == 2, (wrong, answer)
            assert re.search(rf"\b{name}\b", " ".join(answer.lines)), (wrong, answer)
