"""Every job on a small text, from the command line to its result."""

import json
import re
import shutil

import numpy as np
import pytest

from tests.pipelines.txl_process import run_txl


def test_training_reports_and_keeps_the_newest_checkpoints(trained):
    workdir, finished = trained
    assert re.search(r"step 40/40 .*nats .*bits/byte .*tokens/s .*left 0:00", finished.stderr)
    assert re.search(r"goodput 0\.\d+ of [\d.]+ s; .*(start|compiling) ", finished.stderr)
    assert re.search(r"tensorboard --logdir .*/#custom_scalars\n", finished.stdout)
    names = sorted(path.name for path in (workdir / "checkpoints").iterdir())
    assert names == ["best.json", "step-00000020", "step-00000030", "step-00000040"]


@pytest.mark.slow
def test_evaluations_before_the_last_step_read_as_much_as_a_tenth_of_the_training(
    config_file, tmp_path
):
    text, data, workdir = tmp_path / "text.txt", tmp_path / "data", tmp_path / "run"
    text.write_text("".join(f"line {n * n % 997} of many\n" for n in range(6000)))
    finished = run_txl("prepare", "--text", text, "--tokenizer", "bytes", "--out", data)
    assert finished.returncode == 0, finished.stderr
    common = ("train", "--config", config_file, "--data", data, "--workdir", workdir)
    finished = run_txl(*common)
    assert finished.returncode == 0, finished.stderr
    assert "evaluations before the last step read the first 4,096 tokens" in finished.stderr
    share = r"^evaluations before the last step: [\d.]+% of the time of training \(training.evalu"
    assert re.search(share, finished.stderr, re.MULTILINE)
    results = [
        line["result"]
        for line in map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
        if "result" in line
    ]
    last = results.pop()
    assert (last["split"], last["step"]) == ("valid", 40) and last["num_tokens"] > 4096
    # The best step is found by equal texts, so the last step has both.
    assert [each["step"] for each in results] == [20, 40]
    assert {(each["split"], each["num_tokens"]) for each in results} == {("valid_beginning", 4096)}


def test_evaluation_counts_every_token_and_is_the_one_of_training(trained, data_folder):
    workdir, training = trained
    finished = run_txl(
        "evaluate", "--workdir", workdir, "--data", data_folder, "--split", "valid", "--json"
    )
    assert finished.returncode == 0, finished.stderr
    result = json.loads(finished.stdout)
    manifest = json.loads((data_folder / "manifest.json").read_text())
    valid = next(split for split in manifest["splits"] if split["name"] == "valid")
    assert result["num_tokens"] == valid["tokens"] - 1
    assert result["bits_per_byte"] == pytest.approx(result["nats_per_token"] / np.log(2.0))
    assert re.search(rf"^bits/byte +{result['bits_per_byte']:.6f}$", training.stderr, re.MULTILINE)


@pytest.mark.slow
def test_a_run_continues_with_its_own_data_and_is_never_shortened(
    trained, data_folder, config_file, tmp_path
):
    workdir = shutil.copytree(trained[0], tmp_path / "run")
    train = ("train", "--workdir", workdir, "--set", "training.num_steps=42")
    finished = run_txl(*train, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert "Going on from the checkpoint of step 40." in finished.stderr
    refused = run_txl("train", "--workdir", workdir, "--set", "training.num_steps=16")
    assert refused.returncode == 78
    assert "never shortened" in refused.stderr and "--init-from" in refused.stderr

    (tmp_path / "my.txt").write_text("".join(f"{n % 7} words\n" for n in range(400)))
    prepare = ("prepare", "--text", tmp_path / "my.txt", "--tokenizer", "words")
    other = tmp_path / "other"
    assert run_txl(*prepare, "--out", other).returncode == 0
    refused = run_txl("train", "--workdir", workdir, "--data", other)
    assert refused.returncode == 78
    assert str(data_folder) in refused.stderr and "--data" in refused.stderr
