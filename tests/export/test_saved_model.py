"""Export of a model as a SavedModel with signatures, model card and warm-up requests."""

import hashlib
import importlib.util
import json
import os

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

import txl_tf
from tests.export.bad_requests import BAD, GOOD
from tests.export.conftest import CONFIG, MODEL_CARD
from tests.export.requests import memory_in, nothing_read, random_ids, score, tensors
from txl_tf.data.tokenizers.character_tokenizer import CharacterTokenizer
from txl_tf.errors import OutputExistsError, StorageError
from txl_tf.export import ExportOptions, version_folder
from txl_tf.export.warm_up import warm_up_file

SEGMENT = CONFIG.segment_length


def model_nll(model, text, memory):
    """The model's own loss, a segment after the other."""
    found = []
    for start in range(0, text.shape[1] - 1, SEGMENT):
        piece = text[:, start : start + SEGMENT + 1]
        nll, memory = model.score(piece[:, :-1], piece[:, 1:], memory)
        found.append(nll)
    return np.concatenate(found, axis=1), memory


def test_texts_in_segments_score_as_the_model_does(model, signatures):
    text = random_ids(3, 4 * SEGMENT + 3)
    expected, memory = model_nll(model, text, model.initial_memory(3))
    # Cuts where the model's segments end do not show; the first answer has a long memory.
    answer = score(signatures, text[:, : 2 * SEGMENT + 1], nothing_read(3))
    rest = score(signatures, text[:, 2 * SEGMENT :], memory_in(answer))
    nll = np.concatenate([answer["nll"], rest["nll"]], axis=1)
    np.testing.assert_allclose(nll, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(rest["total_nll"], np.sum(rest["nll"], axis=1), rtol=1e-6)
    states = np.stack(memory.states, axis=1)
    np.testing.assert_allclose(rest["memory_states"], states, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(rest["memory_valid_length"], memory.valid_length)
    forgotten = score(signatures, text[:, 2 * SEGMENT :], nothing_read(3))
    assert np.abs(forgotten["nll"][:, 0] - rest["nll"][:, 0]).max() > 1e-2


def test_rows_of_different_lengths_are_those_read_alone(signatures):
    lengths = [1, SEGMENT, SEGMENT + 1, 2 * SEGMENT + 2]
    text = random_ids(4, max(lengths) + 1, seed=2)
    together = score(signatures, text, nothing_read(4), lengths)
    np.testing.assert_array_equal(together["num_scored"], lengths)
    for row, length in enumerate(lengths):
        alone = score(signatures, text[row : row + 1, : length + 1], nothing_read(1))
        nll = together["nll"][row]
        np.testing.assert_allclose(nll[:length], alone["nll"][0], rtol=0, atol=1e-5)
        assert not np.any(nll[length:])
        for name, value in memory_in(together).items():
            np.testing.assert_allclose(value[row], alone[name][0], rtol=0, atol=1e-5)
    noise = text.copy()
    for row, length in enumerate(lengths):
        noise[row, length + 1 :] = -7  # also what is no token at all
    again = score(signatures, noise, nothing_read(4), lengths)
    for name, value in together.items():
        np.testing.assert_array_equal(again[name], value)


def test_a_row_does_not_depend_on_the_others_by_a_bit(signatures):
    text = random_ids(3, 2 * SEGMENT + 1, seed=4)
    states = np.random.default_rng(0).normal(size=(3, 2, CONFIG.memory_length, 8))
    memory = {
        "memory_states": states.astype("float32"),
        "memory_valid_length": np.array([7, 3, 0], "int32"),
    }
    scored = score(signatures, text, memory)
    memory["memory_states"][1:] *= 100.0
    memory["memory_valid_length"][1:] = [0, 7]
    text[1:] = text[1:, ::-1]
    others = score(signatures, text, memory)
    for name, value in scored.items():
        np.testing.assert_array_equal(others[name][0], value[0])
    assert np.all(others["total_nll"][1:] != scored["total_nll"][1:])


def test_bad_requests_are_refused_and_leave_nothing_behind(signatures):
    before = signatures["score"](**tensors(GOOD))
    for name, (changes, message) in BAD.items():
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            pytest.fail(f"{name}: {signatures['score'](**tensors({**GOOD, **changes}))}")
    after = signatures["score"](**tensors(GOOD))
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)


def test_huge_memory_is_an_error_and_not_a_silent_nan(signatures):
    request = {**GOOD, "memory_states": np.full((2, 2, 7, 8), 3e38, "float32")}
    with pytest.raises(tf.errors.InvalidArgumentError, match="it must be finite"):
        pytest.fail(f"{signatures['score'](**tensors(request))['nll']}")


def test_everything_in_the_folder_is_in_its_list(exported):
    lines = (exported / "SHA256SUMS").read_text().splitlines()
    listed = dict(reversed(line.split("  ")) for line in lines)
    files = {str(path.relative_to(exported)) for path in exported.rglob("*") if path.is_file()}
    assert listed.keys() == files - {"SHA256SUMS"}
    for name, expected in listed.items():
        assert hashlib.sha256((exported / name).read_bytes()).hexdigest() == expected
    card = json.loads((exported / "assets.extra" / "model_card.json").read_text())
    assert {name: card[name] for name in MODEL_CARD} == MODEL_CARD
    serving = card["serving"]
    assert serving["memory"]["shape"] == ["rows", 2, CONFIG.memory_length, 8]
    assert serving["weights"]["share_of_float32"] == 1.0
    page = (exported / "assets.extra" / "model_card.md").read_text()
    assert "| bits_per_byte | 1.25 |" in page
    assert [path.name for path in exported.parent.iterdir()] == ["1"]


def test_a_folder_that_exists_is_left_alone(model, tmp_path):
    folder = tmp_path / "1"
    folder.mkdir()
    (folder / "precious.txt").write_text("kept")
    with pytest.raises(OutputExistsError) as raised:
        txl_tf.export_saved_model(model, folder, MODEL_CARD)
    assert raised.value.exit_code == 73
    assert raised.value.where == str(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    assert [path.name for path in folder.iterdir()] == ["precious.txt"]


def test_a_full_disk_leaves_nothing(model, tmp_path, monkeypatch):
    error = tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    def save(root, folder, *arguments):
        os.makedirs(os.path.join(folder, "variables"))
        raise error

    monkeypatch.setattr(tf.saved_model, "save", save)
    monkeypatch.setattr(version_folder, "_with_default", lambda signatures: {})
    with pytest.raises(StorageError, match="No space left on device") as raised:
        txl_tf.export_saved_model(model, tmp_path / "1", MODEL_CARD)
    assert raised.value.exit_code == 74
    assert len(str(raised.value).splitlines()) == 3
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_exported_is_refused_before_anything_is_written(model, tmp_path):
    with pytest.raises(TypeError):
        txl_tf.export_saved_model(model, tmp_path / "1", {"config": CONFIG})
    with pytest.raises(ValueError, match="256 tokens"):
        txl_tf.export_saved_model(model, tmp_path / "1", {}, tokenizer=CharacterTokenizer("ab"))
    with pytest.raises(ValueError, match="weights='int4'"):
        ExportOptions(weights="int4")
    with pytest.raises(ValueError, match="max_input_tokens"):
        ExportOptions(max_input_tokens=0)
    assert list(tmp_path.iterdir()) == []


def test_a_record_is_the_request_that_was_given(tmp_path):
    inputs = {
        "token_ids": tf.constant(np.arange(300, dtype="int32")[None]),
        "texts": tf.constant([b"\xff\0", b""]),
        "memory_states": tf.zeros([1, 0, 0, 0]),
    }
    (tmp_path / "records").write_bytes(warm_up_file([("score", inputs)]))
    [record] = tf.data.TFRecordDataset(str(tmp_path / "records")).as_numpy_iterator()
    request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
    assert request.model_spec.signature_name == "score"
    assert set(request.inputs) == set(inputs)
    for name, tensor in inputs.items():
        read = tf.make_ndarray(request.inputs[name])
        assert read.shape == tensor.shape
        np.testing.assert_array_equal(read, tensor.numpy())


@pytest.mark.slow
def test_without_the_extra_an_export_has_no_warm_up_requests(model, tmp_path, monkeypatch, caplog):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name, *more: None if name == "tensorflow_serving" else find_spec(name, *more),
    )
    txl_tf.export_saved_model(model, tmp_path / "1", MODEL_CARD)
    names = sorted(path.name for path in (tmp_path / "1" / "assets.extra").iterdir())
    assert names == ["README.md", "model_card.json", "model_card.md"]
    assert "the extra `serving`" in caplog.text
