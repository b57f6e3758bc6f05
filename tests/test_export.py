"""The SavedModel against the model, in a process that has TensorFlow and nothing of ours."""

import errno
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from tests.toy_batches import VOCABULARY_SIZE, toy_experiment
from txl_tf import export
from txl_tf.errors import OutputExistsError, StorageError
from txl_tf.models.transformer_xl import TransformerXL

CONFIG = toy_experiment(model={"num_layers": 2}).model
MODEL_CARD = {"name": "toy", "bits_per_byte": 1.25, "config": CONFIG.to_dict()}

# Reads segments and writes answers; memory goes from answer to answer, as with a server.
CLIENT = """
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("txl_tf", "pipelines", "tests"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
import numpy as np
import tensorflow as tf

model = tf.saved_model.load(sys.argv[1])
given, answers = np.load(sys.argv[2]), {}
for case in sorted({name.split("/")[0] for name in given.files}):
    memory = {
        "memory_states": tf.constant(given[f"{case}/memory_states"]),
        "memory_valid_length": tf.constant(given[f"{case}/memory_valid_length"]),
    }
    for index in range(3):
        token_ids = tf.constant(given[f"{case}/token_ids/{index}"])
        target_ids = tf.constant(given[f"{case}/target_ids/{index}"])
        following = model.signatures["next_token"](token_ids=token_ids, **memory)
        scored = model.signatures["score"](token_ids=token_ids, target_ids=target_ids, **memory)
        answers[f"{case}/nll/{index}"] = scored.pop("nll")
        answers[f"{case}/log_probs/{index}"] = following.pop("log_probs")
        for name in memory:
            assert np.array_equal(scored[name], following[name]), name
            answers[f"{case}/{name}/{index}"] = scored[name]
        memory = scored
np.savez(sys.argv[3], **answers)
print(sorted({name.partition(".")[0] for name in sys.modules} & {"txl_tf", "pipelines", "tests"}))
"""

# Batch size and the lengths of three segments, all through the same two signatures.
CASES = {"one": (1, (5, 5, 5)), "many": (4, (3, 9, 1))}


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(1234)
    return TransformerXL(CONFIG)


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "models" / "1"
    assert export.export_saved_model(model, folder, MODEL_CARD) == folder
    return folder


def segments_of(case):
    batch_size, lengths = CASES[case]
    text = np.random.default_rng(batch_size).integers(
        0, VOCABULARY_SIZE, size=(batch_size, sum(lengths) + 1), dtype="int32"
    )
    ends = np.cumsum(lengths)
    return [
        (text[:, end - length : end], text[:, end - length + 1 : end + 1])
        for end, length in zip(ends, lengths, strict=True)
    ]


@pytest.fixture(scope="module")
def answers(exported, tmp_path_factory):
    """What a process without the package computes from the export."""
    folder = tmp_path_factory.mktemp("client")
    given = {}
    for case, (batch_size, _) in CASES.items():
        shape = (batch_size, CONFIG.num_layers, CONFIG.memory_length, CONFIG.hidden_dim)
        given[f"{case}/memory_states"] = np.zeros(shape, "float32")
        given[f"{case}/memory_valid_length"] = np.zeros(batch_size, "int32")
        for index, (token_ids, target_ids) in enumerate(segments_of(case)):
            given[f"{case}/token_ids/{index}"] = token_ids
            given[f"{case}/target_ids/{index}"] = target_ids
    np.savez(folder / "given.npz", **given)
    finished = subprocess.run(
        [sys.executable, "-I", "-c", CLIENT, exported, folder / "given.npz", folder / "out.npz"],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == "[]"  # nothing of ours was imported
    return np.load(folder / "out.npz")


@pytest.mark.parametrize("case", CASES)
def test_three_segments_with_memory_score_as_the_model_does(model, answers, case):
    memory = model.initial_memory(CASES[case][0])
    for index, (token_ids, target_ids) in enumerate(segments_of(case)):
        nll, memory = model.score(token_ids, target_ids, memory)
        served = answers[f"{case}/nll/{index}"]
        assert served.dtype == np.float32
        np.testing.assert_allclose(served, nll, rtol=0, atol=1e-5)
        states = answers[f"{case}/memory_states/{index}"]
        np.testing.assert_allclose(states, np.stack(memory.states, axis=1), rtol=0, atol=1e-5)
        valid_length = answers[f"{case}/memory_valid_length/{index}"]
        np.testing.assert_array_equal(valid_length, memory.valid_length)


@pytest.mark.parametrize("case", CASES)
def test_next_token_gives_the_log_probabilities_after_the_last(model, answers, case):
    memory = model.initial_memory(CASES[case][0])
    for index, (token_ids, _) in enumerate(segments_of(case)):
        log_probs, memory = model.log_probs(token_ids, memory)
        served = answers[f"{case}/log_probs/{index}"]
        assert served.shape == (CASES[case][0], VOCABULARY_SIZE)
        np.testing.assert_allclose(np.exp(np.float64(served)).sum(axis=-1), 1.0, atol=1e-5)
        np.testing.assert_allclose(served, log_probs[:, -1], rtol=0, atol=1e-5)


def test_memory_matters_in_the_comparison(model):
    (_, _), (token_ids, target_ids), _ = segments_of("many")
    forgotten, _ = model.score(token_ids, target_ids, model.initial_memory(4))
    _, memory = model.score(*segments_of("many")[0], model.initial_memory(4))
    remembered, _ = model.score(token_ids, target_ids, memory)
    assert np.abs(remembered - forgotten).max() > 1e-2


def test_the_model_card_is_there_and_nothing_temporary_is(exported):
    assert json.loads((exported / "model_card.json").read_text()) == MODEL_CARD
    assert [path.name for path in exported.parent.iterdir()] == ["1"]


def test_a_folder_that_exists_is_left_alone(model, tmp_path):
    folder = tmp_path / "1"
    folder.mkdir()
    (folder / "precious.txt").write_text("kept")
    with pytest.raises(OutputExistsError) as raised:
        export.export_saved_model(model, folder, MODEL_CARD)
    assert raised.value.exit_code == 73
    assert raised.value.where == str(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    assert [path.name for path in folder.iterdir()] == ["precious.txt"]


class Archive:
    """Stands in for the archive of Keras, which takes seconds to trace."""

    def __init__(self, error=None):
        self.error = error

    def write_out(self, folder, **kwargs):
        os.makedirs(os.path.join(folder, "variables"))
        if self.error is not None:
            raise self.error


def test_a_full_disk_leaves_nothing(model, tmp_path, monkeypatch):
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(export, "_archive", lambda model: Archive(error))
    with pytest.raises(StorageError, match="No space left on device") as raised:
        export.export_saved_model(model, tmp_path / "1", MODEL_CARD)
    assert raised.value.exit_code == 74
    assert len(str(raised.value).splitlines()) == 3
    assert list(tmp_path.iterdir()) == []


def test_a_card_that_is_not_json_leaves_nothing(model, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "_archive", lambda model: Archive())
    with pytest.raises(TypeError):
        export.export_saved_model(model, tmp_path / "1", {"config": CONFIG})
    assert list(tmp_path.iterdir()) == []
