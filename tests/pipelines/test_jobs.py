"""Every job on a small text, from the command line to its result."""

import re
import shutil

import pytest

from tests.pipelines.txl_process import run_txl


def test_training_reports_and_keeps_the_newest_checkpoints(trained):
    workdir, finished = trained
    assert re.search(r"step 40/40 .*nats .*bits/byte .*tokens/s .*0:00 left", finished.stderr)
    assert re.search(r"time: [\d.]+ s, \d+% in steps; .*(start|compiling) ", finished.stderr)
    assert re.search(r"tensorboard --logdir .*/#custom_scalars\n", finished.stdout)
    names = sorted(path.name for path in (workdir / "checkpoints").iterdir())
    assert names == ["best.json", "step-00000020", "step-00000030", "step-00000040"]


@pytest.mark.slow
def test_a_run_continues_with_its_own_data(trained, tmp_path):
    workdir = shutil.copytree(trained[0], tmp_path / "run")
    train = ("train", "--workdir", workdir, "--set", "training.num_steps=42")
    finished = run_txl(*train, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert "Resuming from the checkpoint of step 40." in finished.stderr
