"""Jobs with `--tpu` run until they need a TPU, which this machine lacks."""

import subprocess
import sys

import pytest

from tests.pipelines.txl_process import environment, run_new_txl

pytestmark = pytest.mark.slow
# The first operation that only a TPU has.
MISSING = "No OpKernel was registered to support Op 'TPUReplicatedInput'"


def stopped(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "tests.pipelines.jobs_up_to_the_device", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )


def test_training_comes_to_the_device(data_folder, config_file, tmp_path):
    data = "--data", data_folder, "--workdir", tmp_path / "run"
    assert MISSING in stopped("train", "--config", config_file, *data).stderr


def test_an_evaluation_comes_to_the_device(data_folder, trained):
    errors = stopped("evaluate", "--workdir", trained, "--data", data_folder).stderr
    assert MISSING in errors
    assert "attention: plain operations" in errors


def test_a_machine_without_a_tpu_is_told_so(data_folder, config_file, tmp_path):
    run = "--data", data_folder, "--workdir", tmp_path / "run"
    run_new_txl(
        "train", "--config", config_file, *run, "--tpu", "local", code=66, says="No TPU answers"
    )
