"""A description of any format that is damaged is refused in three lines that name its place."""

import json
import os

import pytest

from pipelines.checkpoint_watch import read_evaluation_lines
from tests.pipelines.small_experiments import TOY_DATA
from tests.small_models import small_result
from tests.toy_batches import toy_experiment
from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.prepared_dataset import PreparedDataset, dataset_tokenizer
from txl_tf.data.tokenizers.character_tokenizer import CharacterTokenizer
from txl_tf.errors import DataDamagedError, InputMissingError, MismatchError
from txl_tf.model_folder import Workdir
from txl_tf.storage.untrusted_files import MAX_DEPTH


def make_data(folder):
    tokenizer = CharacterTokenizer(list("abc \n"))
    prepare_dataset({"train": [b"abc abc\n" * 50]}, tokenizer, str(folder / "data"), "test")
    return folder / "data" / "manifest.json"


def read_data(path):
    dataset = PreparedDataset.open(str(path.parent))
    dataset_tokenizer(dataset.folder, dataset.manifest)


def make_run(folder):
    Workdir(str(folder)).begin(toy_experiment(), TOY_DATA)
    return folder / "run.json"


def make_results(folder):
    path = folder / "results.jsonl"
    path.write_text(json.dumps({"conditions": {}, "result": small_result().to_dict()}) + "\n")
    return path


FORMATS = {
    "data": (make_data, read_data),
    "vocabulary": (lambda folder: make_data(folder).with_name("vocabulary.json"), read_data),
    "run": (make_run, lambda path: Workdir(str(path.parent)).describe()),
    "results": (make_results, lambda path: read_evaluation_lines(str(path))),
}
# Each is refused by every reader.
CONTENTS = {
    "null": lambda content: b"null",
    "list": lambda content: b"[]",
    "cut": lambda content: content[: len(content) // 2],
    "not text": lambda content: bytes(range(256)),
    "field twice": lambda content: content.replace(b"{", b'{"a": 1, "a": 2, ', 1),
    "nested deep": lambda content: b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
    "many digits": lambda content: b'{"step": ' + b"9" * 400 + b"}",
    "another value": lambda content: content.replace(b'"', b"1", 1),
}
PLACES = {"pipe": os.mkfifo, "folder": os.mkdir}
REFUSALS = (DataDamagedError, InputMissingError, MismatchError, OSError)


def assert_refused(path, read):
    with pytest.raises(REFUSALS) as raised:
        read(path)
    assert len(str(raised.value).splitlines()) <= 3
    assert str(path.parent) in (getattr(raised.value, "where", None) or str(raised.value))


@pytest.mark.parametrize("kind", FORMATS)
def test_damage_is_refused_by_its_place(kind, tmp_path):
    make, read = FORMATS[kind]
    path = make(tmp_path)
    read(path)
    content = path.read_bytes()
    for damage in CONTENTS.values():
        path.write_bytes(damage(content))
        assert_refused(path, read)
    for replace in PLACES.values():
        path.unlink()
        replace(str(path))
        assert_refused(path, read)
        path.rmdir() if path.is_dir() else path.unlink()
        path.touch()
