"""`--profile-steps`: whole loops that contain the steps, written where TensorBoard looks."""

from types import SimpleNamespace
from unittest import mock

import pytest

from pipelines.train import parse_steps
from pipelines.training_figures import StepProfile
from tests.pipelines.txl_process import run_txl
from txl_tf.errors import UsageError
from txl_tf.storage.writable_folder import WritableFolder


@pytest.mark.parametrize(
    ("steps", "begins_at", "loops", "profiled"),
    [
        ("5:6", 0, (4, 8, 12), (5, 8)),
        ("4:9", 0, (4, 8, 12), (1, 12)),
        ("9:9", 0, (4, 8, 12), (9, 12)),
        # Resumed in the middle of them, and beyond.
        ("2:6", 4, (8, 12), (5, 8)),
        ("2:3", 4, (8, 12), None),
        ("13:20", 0, (4, 8, 12), None),
        # The run ends before the last of them.
        ("10:20", 0, (4, 8, 12), (9, None)),
    ],
)
def test_whole_loops_that_contain_the_steps_are_profiled(
    steps, begins_at, loops, profiled, tmp_path
):
    said, done = [], begins_at
    with (
        mock.patch("tensorflow.profiler.experimental.start") as start,
        mock.patch("tensorflow.profiler.experimental.stop") as stop,
    ):
        with StepProfile(parse_steps(steps), WritableFolder.at(tmp_path), said.append) as profile:
            for stop_step in loops:
                profile.before_loop(SimpleNamespace(step=done, next_stop=stop_step))
                done = stop_step
                profile.after_loop(done)
        assert start.call_count == stop.call_count == (profiled is not None)
    if profiled is None or profiled[1] is None:
        assert said == []
    else:
        (line,) = said
        assert line.startswith("Profiled the steps {} to {}, whole loops: ".format(*profiled))


@pytest.mark.parametrize("text", ["", "5", "0:3", "4:3", "a:b", "1:2:3", "-1:2", "1:" + "9" * 30])
def test_no_other_text_names_steps(text):
    with pytest.raises(UsageError, match="counted from 1"):
        parse_steps(text)


@pytest.mark.slow
def test_a_run_writes_the_profile_of_its_steps(data_folder, config_file, tmp_path):
    options = ("--config", config_file, "--data", data_folder, "--workdir", tmp_path / "run")
    finished = run_txl("train", *options, "--profile-steps", "12:13")
    assert finished.returncode == 0, finished.stderr
    assert "Profiled the steps 11 to 15, whole loops: " in finished.stderr
    (written,) = (tmp_path / "run" / "tensorboard").glob("plugins/profile/*/*.xplane.pb")
    assert written.stat().st_size > 1000
