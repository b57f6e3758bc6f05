"""Mistakes that users make: each is answered at once, by what is wrong and by the nearest name."""

import json
import random
import re
import string

import pytest

from pipelines.arguments import load_experiment
from pipelines.configs import NAMED_EXPERIMENTS
from pipelines.workdir import Workdir
from tests.mutated_files.mutations import byte_mutations, json_mutations
from tests.pipelines.arguments_process import STARTS, ArgumentsProcess
from tests.pipelines.test_absurd_settings import DATA

_MOST_SECONDS = 2.0
_CONFIGURATIONS = 2000
_TRAIN = "train --data d --workdir new"
_QUICKSTART = f"{_TRAIN} --config quickstart"
_GENERATE = "generate --workdir run --prompt a"

# The command, its exit code, and what the answer has to say.
_MISUSES = [
    # Misspelt names.
    ("trian", 2, "mean train"),
    ("Train", 2, "mean train"),
    ("tran --config quickstart", 2, "mean train"),
    ("evalute --workdir run", 2, "mean evaluate"),
    ("genrate --workdir run", 2, "mean generate"),
    ("exprot", 2, "mean export"),
    ("prepair --corpus enwik8", 2, "mean prepare"),
    ("tokenize", 2, "Known are"),
    ("analyse", 2, "mean analyze"),
    ("analyze contxt", 2, "mean context"),
    (f"{_TRAIN} --config quikstart", 66, "mean quickstart"),
    (f"{_TRAIN} --config enwik8_bse", 66, "mean enwik8_base"),
    (f"{_TRAIN} --config wikitext103-base", 66, "mean wikitext103_base"),
    (f"{_TRAIN} --confg quickstart", 2, "mean --config"),
    (f"{_QUICKSTART} --work-dir x", 2, "mean --workdir"),
    (f"{_QUICKSTART} --cpu_replicas 2", 2, "mean --cpu-replicas"),
    (f"{_QUICKSTART} --set training.steps=120", 2, "mean training.num_steps"),
    (f"{_QUICKSTART} --set training.num_stesp=120", 2, "mean training.num_steps"),
    (f"{_QUICKSTART} --set num_steps=120", 2, "mean training.num_steps"),
    (f"{_QUICKSTART} --set trainng.num_steps=120", 2, "training"),
    (f"{_QUICKSTART} --set model.layers=3", 2, "mean model.num_layers"),
    (f"{_QUICKSTART} --set optimizer.lr=0.1", 2, "optimizer"),
    (f"{_QUICKSTART} --set optimizer.learningrate=0.1", 2, "mean optimizer.learning_rate"),
    (f"{_QUICKSTART} --set model.mem_length=3", 2, "mean model.memory_length"),
    (f"{_GENERATE} --max-token 5 --temprature 1", 2, "mean --temperature"),
    (f"{_GENERATE} --num-tokens 5", 2, "mean --max-tokens"),
    ("config trainning", 2, "mean training"),
    ("config --config quikstart", 66, "mean quickstart"),
    ("export --workdir run --out o --weights int4", 2, "int8"),
    ("compile --config quickstart --topology v5e4x4", 2, "v5e"),
    ("launch --kind tpu_vm", 2, "mean tpu-vm"),
    ("prepare --corpus enwiki8 --out o", 2, "mean enwik8"),
    ("prepare --train-file text.txt --tokenizer byte --out o", 2, "mean bytes"),
    # Wrong types and values.
    (f"{_QUICKSTART} --set training.num_steps=many", 2, "training.num_steps"),
    (f"{_QUICKSTART} --set training.num_steps=1.5", 2, "training.num_steps"),
    (f"{_QUICKSTART} --set training.num_steps", 2, "--set"),
    (f"{_QUICKSTART} --set training.num_steps=-1", 2, "training.num_steps"),
    (f"{_QUICKSTART} --set model.dropout=2", 2, "model.dropout"),
    (f"{_QUICKSTART} --set model.dropout=high", 2, "model.dropout"),
    (f"{_QUICKSTART} --set training.jit_compile=maybe", 2, "training.jit_compile"),
    (f"{_QUICKSTART} --set optimizer.name=adamm", 2, "adam"),
    (f"{_QUICKSTART} --cpu-replicas two", 2, "--cpu-replicas"),
    (f"{_GENERATE} --max-tokens 0", 2, "--max-tokens"),
    (f"{_GENERATE} --temperature hot", 2, "--temperature"),
    (f"{_GENERATE} --temperature -1", 2, "--temperature -1"),
    (f"{_GENERATE} --top-p 90", 2, "--top-p 90"),
    (f"{_GENERATE} --top-p 0.9 --beams 3", 2, "--beams with --top-p"),
    ("serve --export export --port http", 2, "--port"),
    # Wrong places.
    (_TRAIN, 2, "--config"),
    ("train --config quickstart --workdir new", 2, "--data"),
    ("train --config text.txt --data d --workdir new", 2, "text.txt"),
    ("evaluate --workdir nowhere --data d", 66, "nowhere"),
    ("generate --workdir text.txt --prompt a", 66, "text.txt"),
    ("export --workdir d --out o", 66, "d"),
    ("verify nowhere", 66, "nowhere"),
    ("serve --export nowhere", 66, "nowhere"),
    ("serve --export d", 66, "d"),
    ("convert --from hugging_face --source nowhere --out o", 66, "nowhere"),
    ("export --workdir run --out text.txt", 2, "text.txt"),
    ("prepare --train-file nowhere.txt --tokenizer bytes --out o", 66, "nowhere.txt"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("misuses")
    Workdir(str(folder / "run")).begin(load_experiment("quickstart", []), DATA)
    (folder / "text.txt").write_text("some text\n" * 100)
    (folder / "d").mkdir()
    return folder


@pytest.fixture(scope="module")
def process(folder):
    with ArgumentsProcess(folder) as process:
        yield process


def test_there_are_sixty():
    assert len({command for command, *_ in _MISUSES}) == 60


@pytest.mark.parametrize(("command", "exit_code", "words"), _MISUSES)
def test_misuse_is_answered(process, command, exit_code, words):
    answer = process.run(*command.split()).check()
    assert answer.exit_code == exit_code, answer
    assert words in " ".join(answer.lines), answer
    assert answer.seconds < _MOST_SECONDS


def misspelt(name, source):
    """The name with one letter left out, doubled, exchanged or changed."""
    place = source.randrange(1, len(name) - 1)
    letter = source.choice(string.ascii_lowercase)
    middle = source.choice(["", name[place] * 2, letter, name[place + 1] + name[place]])
    return name[:place] + middle + name[place + (2 if len(middle) == 2 else 1) :]


def misspelt_files(path, source):
    """Configurations with one name wrong, or in the wrong section: the text, and the right name."""
    value = json.loads(path.read_text())
    for section, fields in value.items():
        wrong = misspelt(section, source)
        yield json.dumps({wrong if key == section else key: each for key, each in value.items()})
        for name in fields:
            wrong = misspelt(name, source)
            changed = {wrong if key == name else key: each for key, each in fields.items()}
            yield json.dumps({**value, section: changed})
            other = source.choice([key for key in value if key != section])
            fewer = {key: each for key, each in fields.items() if key != name}
            moved = {**value[other], name: fields[name]}
            yield json.dumps({**value, section: fewer, other: moved})


def texts_of(folder, source):
    """Many mutated configurations of every named experiment."""
    path = folder / "mutated.json"
    for name in NAMED_EXPERIMENTS:
        text = json.dumps(load_experiment(name, []).to_dict())
        path.write_text(text)
        yield from misspelt_files(path, source)
        for mutations in (
            json_mutations(path, lambda each: each),
            byte_mutations(path, source, 60),
        ):
            # They look at the file when the first is asked for.
            path.write_text(text)
            for _, mutate in mutations:
                path.write_text(text)
                mutate(path)
                yield path.read_bytes()


@pytest.mark.slow
def test_mutated_configurations_are_taken_or_refused(process, folder):
    source = random.Random(0)
    texts = list(texts_of(folder, source))
    slowest = 0.0
    for text in source.sample(texts, _CONFIGURATIONS):
        content = text if isinstance(text, bytes) else text.encode()
        (folder / "mutated.json").write_bytes(content)
        answer = process.run(*_TRAIN.split(), "--config", "mutated.json", "--tpu", "local").check()
        assert answer.exit_code in (STARTS, 2, 78), (content[:2000], answer)
        slowest = max(slowest, answer.seconds)
    assert slowest < _MOST_SECONDS


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
