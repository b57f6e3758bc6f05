"""The profile of training, the peak of TPUs, and the figures of memory."""

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from pipelines.jobs.train import parse_steps
from pipelines.run.run_figures import (
    memory_figures,
    peak_tokens_per_second,
    profiled_loop,
)
from tests.pipelines.toy_run import toy_run_experiment
from tests.pipelines.txl_process import run_txl
from txl_tf.errors import UsageError
from txl_tf.models.sizes import run_flops_per_token
from txl_tf.storage.writable_folder import WritableFolder


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
