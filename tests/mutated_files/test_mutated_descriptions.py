"""Descriptions with any field changed and the right checksums are read or refused."""

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.evaluation.watch import read_evaluation_lines
from pipelines.workdir import Workdir
from tests.mutated_files.mutations import (
    byte_mutations,
    json_mutations,
    special_mutations,
)
from tests.mutated_files.seals import (
    seal_checkpoint_manifest,
    seal_data_manifest,
    seal_note,
)
from tests.pipelines.small_experiments import TOY_DATA
from tests.small_models import small_result
from tests.toy_batches import toy_experiment
from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.prepared_dataset import PreparedDataset, dataset_tokenizer
from txl_tf.data.tokenizers.character_tokenizer import CharacterTokenizer
from txl_tf.errors import DataDamagedError, InputMissingError, MismatchError
from txl_tf.training.checkpoint_format import verified_manifest
from txl_tf.training.checkpoint_store import CheckpointStore


def read_data(path):
    dataset = PreparedDataset.open(str(path.parent))
    dataset_tokenizer(dataset.folder, dataset.manifest)


def make_data(folder):
    tokenizer = CharacterTokenizer(list("abc \n"))
    prepare_dataset({"train": [b"abc abc\n" * 50]}, tokenizer, str(folder / "data"), "test")
    return folder / "data" / "manifest.json"


def make_vocabulary(folder):
    make_data(folder)
    return folder / "data" / "vocabulary.json"


def make_checkpoint(folder):
    CheckpointStore(folder, {"a": 1}).save(3, {"x": np.ones(3)})
    return folder / "step-00000003" / "manifest.json"


def make_note(folder):
    store = CheckpointStore(folder, {"a": 1})
    store.save(3, {"x": np.ones(3)})
    store.keep_best(3)
    return folder / "best.json"


def make_run(folder):
    Workdir(str(folder)).begin(toy_experiment(), TOY_DATA)
    return folder / "run.json"


def make_results(folder):
    path = folder / "results.jsonl"
    path.write_text(json.dumps({"conditions": {}, "result": small_result().to_dict()}) + "\n")
    return path


FORMATS = {
    "data": (make_data, read_data, seal_data_manifest),
    "vocabulary": (make_vocabulary, read_data, lambda values: values),
    "checkpoint": (
        make_checkpoint,
        lambda path: verified_manifest(str(path.parent)),
        seal_checkpoint_manifest,
    ),
    "best": (make_note, lambda path: CheckpointStore(path.parent, {"a": 1}).best_step(), seal_note),
    "run": (make_run, lambda path: Workdir(str(path.parent)).describe(), lambda values: values),
    "results": (make_results, lambda path: read_evaluation_lines(str(path)), lambda values: values),
}
REFUSALS = (DataDamagedError, InputMissingError, MismatchError, FileNotFoundError)


@pytest.fixture(scope="module", params=FORMATS)
def described(request, tmp_path_factory):
    """A good file, what reads it, and all of its mutations by name."""
    make, read, seal = FORMATS[request.param]
    path = make(tmp_path_factory.mktemp(request.param))
    read(path)
    mutations = dict(json_mutations(path, seal))
    mutations |= byte_mutations(path, random.Random(0), 60)
    mutations |= special_mutations([])
    return path, read, mutations


def outcome_of(path, read, mutation):
    """What reading a mutated file raises; the file is as before then."""
    content = path.read_bytes()
    try:
        mutation(path)
        read(path)
    except REFUSALS as error:
        return error
    finally:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        path.write_bytes(content)
    return None


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_mutated_description_is_read_or_refused_in_three_lines(described, data):
    path, read, mutations = described
    name = data.draw(st.sampled_from(sorted(mutations)))
    error = outcome_of(path, read, mutations[name])
    if error is not None:
        assert len(str(error).splitlines()) <= 3
        assert str(path.parent) in getattr(error, "where", str(error))


@pytest.mark.slow
def test_no_mutated_description_is_anything_else(described):
    path, read, mutations = described
    for name, mutation in mutations.items():
        error = outcome_of(path, read, mutation)
        assert error is None or len(str(error).splitlines()) <= 3, name
