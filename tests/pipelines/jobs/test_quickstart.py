"""The main job: whole in minutes, and the same when it is repeated."""

import itertools
import re
import time

import pytest
import tensorflow as tf

from pipelines.configs import NAMED_EXPERIMENTS
from pipelines.run.precision import with_faster_policy
from tests.pipelines.small_experiments import TOY_DATA
from tests.pipelines.txl_process import run_new_txl, run_txl
from txl_tf.model_folder import Workdir, open_model

LIMIT_SECONDS = 360
SMALL = (
    "--set",
    "model.num_layers=1",
    "--set",
    "model.hidden_dim=32",
    "--set",
    "model.head_dim=8",
    "--set",
    "model.intermediate_dim=32",
    "--set",
    "training.num_steps=20",
    "--set",
    "training.checkpoint_every_steps=10",
    "--set",
    "evaluation.batch_size=256",
    "--set",
    "optimizer.warmup_steps=5",
)


def figures(finished):
    """The table of results: the figures of both splits by their names."""
    lines = finished.stdout.splitlines()
    head = next(index for index, line in enumerate(lines) if line.split() == ["valid", "test"])
    rows = itertools.takewhile(lambda row: len(row) == 3, map(str.split, lines[head + 1 :]))
    return {name: tuple(values) for name, *values in rows}


@pytest.mark.slow
def test_small_quickstart_runs_every_job_and_repeats_itself(tmp_path):
    workdir = tmp_path / "quickstart"
    first = run_txl("quickstart", "--workdir", workdir, *SMALL)
    [sample] = re.findall(r"sample:\n(.*?)\n\nSavedModel", first.stdout, re.DOTALL)
    assert sample.startswith("# file: example.py") and sample == sample.rstrip()
    assert 40 * " " not in sample
    assert "import " in first.stdout
    assert f"tensorboard --logdir {workdir}" in first.stdout
    exported = re.search(r"SavedModel: (\S+)", first.stdout).group(1)
    assert set(tf.saved_model.load(exported).signatures) >= {"complete", "score"}
    assert open_model(exported).description.step == 20

    again = run_txl("quickstart", "--workdir", workdir, *SMALL)
    assert figures(again) == figures(first)


def product_rates(bfloat16):
    return {"float32": 1e11, "bfloat16": bfloat16}.get


@pytest.mark.parametrize(("rate", "policy"), [(2e11, "mixed_bfloat16"), (5e10, "float32")])
def test_a_new_run_has_the_faster_precision_and_one_that_was_begun_its_own(
    rate, policy, tmp_path, monkeypatch
):
    monkeypatch.setattr("pipelines.run.precision.product_rate", product_rates(rate))
    named, workdir = NAMED_EXPERIMENTS["quickstart"](), Workdir(str(tmp_path / "run"))
    data, strategy = {**TOY_DATA, "vocabulary_size": 256}, tf.distribute.get_strategy()
    choice = with_faster_policy(named, strategy)
    assert choice.training.dtype_policy == policy
    workdir.begin(choice, data)
    monkeypatch.setattr("pipelines.run.precision.product_rate", None)
    assert workdir.check_same(named, data).experiment == choice


@pytest.mark.slow
@pytest.mark.alone
def test_quickstart_is_good_within_six_minutes(tmp_path):
    begin = time.monotonic()
    finished = run_new_txl("quickstart", "--workdir", tmp_path / "quickstart")
    seconds = time.monotonic() - begin
    print(f"{seconds:.0f} seconds", figures(finished), sep="\n")
    assert seconds <= LIMIT_SECONDS
    assert float(figures(finished)["bits/byte"][1]) <= 2.1
