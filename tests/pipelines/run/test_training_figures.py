"""Progress of training, its profile, and the peak of TPUs."""

import io
import math
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from rich.console import Console

from pipelines.jobs.train import parse_steps
from pipelines.run.training_data import loss_figure
from pipelines.run.training_figures import (
    memory_figures,
    peak_tokens_per_second,
    profiled_loop,
)
from pipelines.shell import progress as module
from pipelines.shell.progress import TrainingProgress
from tests.pipelines.toy_run import toy_run_experiment
from tests.pipelines.txl_process import run_txl
from txl_tf.errors import UsageError
from txl_tf.models.sizes import run_flops_per_token
from txl_tf.storage.locks import WritableFolder
from txl_tf.training.ledger import LoopReport, StepRecord, StepStatus


def report(step, nats, tokens_per_second=123_456.0, has_compiled=False):
    record = StepRecord(
        step=step, nats_per_token=nats, gradient_norm=1.0, checksum=0, status=StepStatus.APPLIED
    )
    return LoopReport(
        records=(record,),
        num_tokens=1000,
        learning_rate=0.1,
        seconds=1000 / tokens_per_second,
        has_compiled=has_compiled,
    )


def test_plain_lines_have_the_same_figures(capsys):
    with TrainingProgress(100, lambda nats: loss_figure(nats, 1.0, False)) as progress:
        progress.update(report(50, math.log(2), has_compiled=True))
        progress.show_validation("2.0000")
        progress.update(report(100, math.log(2)))
    first, last = capsys.readouterr().err.splitlines()
    assert first == "step 50/100  loss 0.6931 nats  1.0000 bits/byte  123,456 tokens/s"
    assert last.endswith("123,456 tokens/s  valid 2.0000  0:00 left")


def test_a_terminal_of_80_columns_has_a_bar_with_all_figures(monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr(module.sys.stderr, "isatty", lambda: True)
    console = Console(file=terminal, force_terminal=True, width=80, color_system=None)
    monkeypatch.setattr(module, "Console", lambda **_: console)
    with TrainingProgress(400_000, lambda nats: loss_figure(nats, 4.0, False)) as progress:
        progress.update(report(123_456, 8 * math.log(2), 9_950.0))
        progress.show_validation("1.5000")
    for part in ("123456/400000", "left", "2.0000 bits/byte", "10k tokens/s", "valid 1.5000"):
        assert part in terminal.getvalue()


@pytest.mark.parametrize(
    ("steps", "loops"),
    [("5:6", ["5 to 8"]), ("4:9", ["1 to 4", "5 to 8", "9 to 12"]), ("13:20", [])],
)
def test_whole_loops_that_contain_the_steps_are_profiled(steps, loops, tmp_path):
    lines, folder = [], WritableFolder.at(tmp_path)
    with mock.patch("tensorflow.profiler.experimental.Profile") as profile:
        for last in (4, 8, 12):
            trainer = SimpleNamespace(step=last - 4, next_stop=last)
            with profiled_loop(parse_steps(steps), trainer, folder, lines.append):
                pass
    assert profile.call_count == len(loops)
    path = f"{tmp_path}/plugins/profile"
    assert lines == [f"Profiled the steps {each}, a whole loop: {path}" for each in loops]
    for text in ("", "5", "0:3", "4:3", "a:b", "1:2:3", "-1:2", "1:" + "9" * 30):
        with pytest.raises(UsageError, match="counted from 1"):
            parse_steps(text)


@pytest.mark.slow
def test_a_run_writes_the_profile_of_its_steps(data_folder, config_file, tmp_path):
    options = ("--config", config_file, "--data", data_folder, "--workdir", tmp_path / "run")
    run_txl(
        "train",
        *options,
        "--profile-steps",
        "12:13",
        says="Profiled the steps 11 to 15, a whole loop: ",
    )
    (output,) = (tmp_path / "run" / "tensorboard").glob("plugins/profile/*/*.xplane.pb")
    assert output.stat().st_size > 1000


@pytest.mark.parametrize(
    ("name", "num_replicas", "teraflops"),
    [("v5litepod-16", 16, 16 * 197), ("v3-8", 8, 4 * 123), ("v4-8", 4, 4 * 275)],
)
def test_a_tpu_has_the_published_peak_of_its_chips(monkeypatch, name, num_replicas, teraflops):
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", name)
    strategy = mock.Mock(spec=tf.distribute.TPUStrategy, num_replicas_in_sync=num_replicas)
    strategy.extended = None
    experiment = toy_run_experiment()
    peak = peak_tokens_per_second(experiment, strategy)
    assert peak * run_flops_per_token(experiment) == pytest.approx(teraflops * 1e12)
    assert peak_tokens_per_second(experiment, tf.distribute.get_strategy()) is None


def test_norms_of_a_memory_are_means_over_filled_positions():
    states = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    memory = {"states/000": states, "valid_length": np.array([1, 3])}
    norm = np.mean([np.linalg.norm(state) for state in (*states[0, 2:], *states[1])])
    assert memory_figures(memory) == {
        "memory/valid_length": 2.0,
        "memory/norm/layer_01": pytest.approx(norm),
    }
    empty = memory | {"valid_length": np.zeros(2)}
    assert memory_figures(empty) == {"memory/valid_length": 0.0}
