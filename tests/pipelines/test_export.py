"""`txl export` as a job: what it accepts, which version it writes, what it says."""

import argparse
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import txl_tf
from pipelines import export
from pipelines.command_line import main
from pipelines.workdir import Workdir
from tests.convert.goldens import Golden
from tests.export.requests import nothing_read, rows_of, sampling, tensors
from tests.pipelines.small_experiments import TOY_DATA
from tests.small_models import small_result
from tests.toy_batches import toy_experiment
from txl_tf.config.generation import GenerationConfig
from txl_tf.config.model import LSTMConfig
from txl_tf.errors import DataDamagedError, InputMissingError, UsageError
from txl_tf.model_folder import write_model_folder
from txl_tf.training.metrics import MetricsLog, evaluation_figures


def checked(*arguments):
    parser = argparse.ArgumentParser()
    export.add_arguments(parser)
    parsed = parser.parse_args([str(each) for each in arguments])
    export.check_arguments(parsed)
    return parsed


@pytest.fixture
def workdir(tmp_path):
    workdir = Workdir(str(tmp_path / "run"))
    workdir.begin(toy_experiment(), TOY_DATA)
    return workdir


def test_arguments_are_checked_before_anything_is_read(workdir, tmp_path):
    run = ("--workdir", workdir.folder, "--out")
    assert checked(*run, tmp_path / "new").weights == "float32"
    for wrong in (
        ("--memory-length", -1),
        ("--version", 0),
        ("--max-text-bytes", 0),
        ("--num-candidates", 0),
        ("--sample-tokens", 1),
    ):
        with pytest.raises(UsageError, match="out of range") as raised:
            checked(*run, tmp_path / "new", *wrong)
        assert raised.value.where == f"{wrong[0]} {wrong[1]}"
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="not a folder"):
        checked(*run, tmp_path / "file")
    with pytest.raises(InputMissingError):
        checked("--workdir", tmp_path / "none", "--out", tmp_path / "new")


def test_what_has_no_attention_is_not_exported(tmp_path):
    config = LSTMConfig(vocabulary_size=5, num_layers=1, hidden_dim=4, segment_length=3)
    experiment = toy_experiment().replace(model=config)
    workdir = Workdir(str(tmp_path / "run"))
    workdir.begin(experiment, TOY_DATA | {"vocabulary_size": 5})
    with pytest.raises(UsageError, match="recurrent"):
        checked("--workdir", workdir.folder, "--out", tmp_path / "new")


def test_the_card_has_the_newest_evaluation_of_the_checkpoint(workdir):
    assert export.measured_quality(workdir, 7) == {}
    results = [{"step": 7, "bits_per_byte": 3.0}, {"step": 8}, {"step": 7, "bits_per_byte": 2.0}]
    folder = Path(workdir.evaluations) / "valid"
    folder.mkdir(parents=True)
    lines = [json.dumps({"conditions": {}, "result": result}) + "\n" for result in results]
    (folder / "results.jsonl").write_text("".join(lines))
    assert export.measured_quality(workdir, 7) == {"valid": results[2]}
    (folder / "results.jsonl").write_text("{")
    with pytest.raises(DataDamagedError, match="earlier results"):
        export.measured_quality(workdir, 7)


def test_the_card_has_what_training_evaluated(workdir):
    """`txl evaluate --watch` knows more of the same weights, and so comes first."""
    shown = small_result(total_nats=30.0, num_tokens=12)
    log = MetricsLog(workdir.metrics)
    log.continue_at_end()
    log.append(7, "train", {"loss/perplexity": 4.0})
    for split in ("valid", "test"):
        log.append(7, split, evaluation_figures(dataclasses.replace(shown, split=split, step=7)))
    measured = export.measured_quality(workdir, 7)
    assert set(measured) == {"valid", "test"}
    assert measured["valid"]["nats_per_token"] == 2.5
    assert measured["valid"]["perplexity"] == shown.perplexity
    assert "evaluation_seconds" not in measured["valid"]
    assert export.measured_quality(workdir, 8) == {}
    folder = Path(workdir.evaluations) / "test"
    folder.mkdir(parents=True)
    line = {"conditions": {}, "result": {"step": 7, "perplexity": 2.0}}
    (folder / "results.jsonl").write_text(json.dumps(line) + "\n")
    assert export.measured_quality(workdir, 7)["test"] == line["result"]


def test_options_of_a_text_are_checked_before_anything_is_read(workdir, tmp_path):
    job = ("--workdir", workdir.folder, "--out", tmp_path / "new")
    plain = checked(*job)
    assert plain.completion == GenerationConfig()
    assert checked(*job, "--max-output-tokens", 32).completion.max_tokens == 32
    given = checked(*job, "--top-k", 5, "--temperature", 0, "--stop", "a", "--stop", "b").completion
    assert given == GenerationConfig(top_k=5, temperature=0, stop=("a", "b"))
    for wrong, words in (
        (("--max-output-tokens", 32, "--max-tokens", 33), "--max-tokens 33"),
        (("--temperature", -1), "--temperature -1"),
        (("--top-p", 0), "--top-p 0"),
        (("--stop", ""), "--stop ''"),
        (("--max-tokens", 0), "--max-tokens 0"),
    ):
        with pytest.raises(UsageError) as raised:
            checked(*job, *wrong)
        assert raised.value.where.startswith(words)


@pytest.mark.slow
def test_every_export_is_a_new_version(trained, data_folder, tmp_path, capsys):
    out = tmp_path / "served"
    job = ("export", "--workdir", str(trained[0]), "--out", str(out))
    assert main([*job]) == 0
    assert f"SavedModel: {out / '1'}" in capsys.readouterr().out
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    small = ("--weights", "int8", "--memory-dtype", "bfloat16", "--memory-length", "9")
    text = ("--max-tokens", "7", "--top-k", "5", "--stop", " 7", "--license", "mit")
    assert main([*job, *small, *text, "--data", str(data_folder)]) == 0
    assert "nats/token" in capsys.readouterr().out
    assert main([*job, "--version", "1"]) == 73
    assert sorted(path.name for path in out.iterdir()) == ["1", "2"]
    assert before == {path: path.read_bytes() for path in before}
    assert main(["verify", str(out)]) == 0
    card = json.loads((out / "2" / "assets.extra" / "model_card.json").read_text())
    assert card["step"] == 40
    assert card["model"]["memory_length"] == 9
    assert card["quality"]["valid"]["perplexity"] > 1.0  # of the end of training
    page = (out / "2" / "assets.extra" / "README.md").read_text()
    assert page.startswith('---\nlicense: "mit"\n') and 'split: "valid"\n' in page
    assert "the first " in page  # with --data, the loss of what is stored
    completion = card["serving"]["completion"]
    assert completion["max_tokens"] == 7 and completion["top_k"] == 5
    assert card["serving"]["memory"]["dtype"] == "bfloat16"
    weights = card["serving"]["weights"]
    assert abs(weights["sample_loss_change"]) < 0.01
    loaded = tf.saved_model.load(str(out / "2"))
    text = {"texts": tf.constant([b"7 and"]), "previous_token_ids": tf.constant([-1])}
    empty = {"memory_states": tf.zeros([1, 0, 0, 0], tf.bfloat16)}
    answer = loaded.signatures["score_text"](**text, **empty, memory_valid_length=tf.constant([0]))
    [written] = loaded.signatures["serving_default"](tf.constant([b"7 and"]))["texts"].numpy()
    assert len(written) <= 7 and b" 7" not in written
    assert answer["memory_states"].dtype == tf.bfloat16
    assert answer["memory_states"].shape == (1, 2, 9, 16)
    assert 0.0 < float(answer["total_nll"][0]) < 40.0


@pytest.mark.slow
def test_an_official_checkpoint_is_imported_exported_and_writes(tmp_path):
    golden = Golden("tf1_wt103_like")
    write_model_folder(golden.load(), str(tmp_path / "converted"))
    job = ["export", "--workdir", str(tmp_path / "converted"), "--out", str(tmp_path / "served")]
    job += ["--temperature", "0", "--max-tokens", "12"]
    assert main(job) == 0
    loaded = tf.saved_model.load(str(tmp_path / "served" / "1"))
    assert "generate_text" not in loaded.signatures  # there is no vocabulary
    assert main([*job, "--stop", "."]) == 2
    prompts = golden.arrays["seg0/inputs"].astype("int32")
    num_rows = len(prompts)
    request = {**rows_of(prompts), **sampling(num_rows, max_tokens=12), **nothing_read(num_rows)}
    answer = loaded.signatures["generate"](**tensors(request))
    expected, _ = txl_tf.generate(golden.load(), prompts, max_tokens=12, temperature=0)
    np.testing.assert_array_equal(answer["token_ids"], expected)
    alone = loaded.signatures["serving_default"](tf.constant(prompts))["token_ids"]
    np.testing.assert_array_equal(alone, expected)
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
