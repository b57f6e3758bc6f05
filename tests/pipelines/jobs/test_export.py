"""`txl export` as a job: what it accepts, and which version it writes."""

import json

import numpy as np
import pytest
import tensorflow as tf

import txl_tf
from pipelines.jobs import export
from tests.convert.goldens import Golden
from tests.export.requests import generate, nothing_read, rows_of, tensors
from tests.pipelines.small_experiments import TOY_DATA
from tests.pipelines.txl_process import parsed
from tests.small_models import toy_experiment
from txl_tf.config.model import LSTMConfig
from txl_tf.errors import UsageError
from txl_tf.model_folder import Workdir, open_model, write_model_folder


def checked(*arguments):
    return export.check_arguments(parsed(export, *arguments))


@pytest.fixture
def workdir(tmp_path):
    workdir = Workdir(str(tmp_path / "run"))
    workdir.begin(toy_experiment(), TOY_DATA)
    return workdir


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--memory-length", -1), "--memory-length -1"),
        (("--version", 0), "--version 0"),
        (("--max-text-bytes", 0), "--max-text-bytes 0"),
        (("--max-output-tokens", 32, "--max-tokens", 33), "--max-tokens 33"),
        (("--temperature", -1), "--temperature -1"),
        (("--stop", ""), "--stop ''"),
        (("--out", __file__), "not a folder"),
    ],
)
def test_wrong_arguments_are_named(workdir, tmp_path, txl, words, says):
    out = ("--out", tmp_path / "new")
    txl("export", "--workdir", workdir.folder, *out, *words, code=2, says=says)
    assert not (tmp_path / "new").exists()


def test_a_recurrent_model_is_not_exported(tmp_path):
    config = LSTMConfig(vocabulary_size=5, num_layers=1, hidden_dim=4, segment_length=3)
    experiment = toy_experiment().replace(model=config)
    workdir = Workdir(str(tmp_path / "run"))
    workdir.begin(experiment, TOY_DATA | {"vocabulary_size": 5})
    with pytest.raises(UsageError, match="recurrent"):
        checked("--workdir", workdir.folder, "--out", tmp_path / "new")


@pytest.mark.slow
def test_every_export_is_a_new_version(trained, data_folder, tmp_path, txl):
    out = tmp_path / "served"
    job = ("export", "--workdir", trained, "--out", out)
    assert f"SavedModel: {out / '1'}" in txl(*job)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    small = ("--weights", "int8", "--memory-length", "9")
    txl(*job, *small, "--max-tokens", "7", "--top-k", "5", "--stop", " 7")
    txl(*job, "--version", "1", code=73)
    assert sorted(path.name for path in out.iterdir()) == ["1", "2"]
    assert before == {path: path.read_bytes() for path in before}
    txl("verify", out)
    described = open_model(out).description
    assert (described.step, described.stored_as) == (40, "int8")
    assert described.model.memory_length == 9
    signatures = tf.saved_model.load(str(out / "2")).signatures
    [text] = signatures["serving_default"](tf.constant([b"7 and"]))["texts"].numpy()
    assert len(text) <= 7 and b" 7" not in text
    memory = {"memory_states": tf.zeros([0]), "memory_valid_length": tf.constant([0])}
    ids = {"token_ids": tf.constant([[7, 8]]), "target_ids": tf.constant([[8, 9]])}
    answer = signatures["score"](**ids, lengths=tf.constant([2]), **memory)
    assert answer["memory_states"].shape == (1, 1, 9, 16)
    losses = []
    for version in ("1", "2"):
        evaluate = ("evaluate", "--workdir", out / version, "--data", data_folder)
        memory = ("--set", "evaluation.memory_length=9")
        result = json.loads(txl(*evaluate, "--split", "valid", *memory, "--json"))
        losses.append(result["nats_per_token"])
    assert 0 < abs(losses[1] / losses[0] - 1) < 0.01


@pytest.mark.slow
def test_an_official_checkpoint_is_imported_exported_and_writes(tmp_path, txl):
    golden = Golden("tf1_wt103_like")
    write_model_folder(golden.load(), str(tmp_path / "converted"))
    job = ("export", "--workdir", tmp_path / "converted", "--out", tmp_path / "served")
    txl(*job)
    loaded = tf.saved_model.load(str(tmp_path / "served" / "1"))
    assert "complete" not in loaded.signatures  # there is no vocabulary
    txl(*job, "--stop", ".", code=2)
    prompts = golden.arrays["seg0/inputs"].astype("int32")
    nothing = nothing_read(len(prompts))
    answer = generate(loaded.signatures, rows_of(prompts), nothing, max_tokens=12)
    expected, _ = txl_tf.generate(golden.load(), prompts, max_tokens=12, temperature=0)
    np.testing.assert_array_equal(answer["token_ids"], expected)
    # The official code attends to memory of zeros, which is memory like any other.
    model = golden.load()
    zeros = golden.zeros(model)
    memory = {
        "memory_states": np.stack(zeros.states, axis=1),
        "memory_valid_length": np.asarray(zeros.valid_length),
    }
    targets = golden.arrays["seg0/targets"].astype("int32")
    scored = loaded.signatures["score"](
        **tensors({**rows_of(prompts), "target_ids": targets, **memory})
    )
    np.testing.assert_allclose(scored["nll"], golden.arrays["seg0/nll"], rtol=0, atol=1e-5)
