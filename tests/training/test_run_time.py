"""Use of time of a run: every second has one cause, and repeated steps are lost."""

import types

import pytest

from txl_tf.training import run_time as module
from txl_tf.training.metrics import MetricsLog
from txl_tf.training.run_time import CAUSES, RunClock, run_time_of

STEP_SECONDS, NUM_STEPS, PERIOD = 0.5, 40, 10


class Clock:
    """Time that passes when it is told to."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(module.time, "time", lambda: self.now + 1e9)

    def passes(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def loop(step, seconds, num_steps, **figures):
    values = {"step": step, "seconds": seconds, "num_steps": num_steps, "num_skipped_steps": 0}
    return types.SimpleNamespace(**{**values, **figures})


def train(clock, path, *, from_step=0, until_step=NUM_STEPS, skipped=0):
    """A process with a checkpoint every ten steps, which is killed at a step."""
    notes = RunClock()
    clock.passes(3.0)
    notes.begin(MetricsLog(path), from_step)
    clock.passes(1.0)
    for step in range(from_step + 5, until_step + 1, 5):
        is_first = step == from_step + 5
        seconds = 5 * STEP_SECONDS + (7.0 if is_first else 0.0)
        clock.passes(seconds)
        options = {"has_compiled": is_first, "num_skipped_steps": skipped}
        notes.note_loop(loop(step, seconds, 5, **options))
        if step % PERIOD == 0:
            clock.passes(0.25)
            notes.note("checkpoints", step, seconds=0.25)
            clock.passes(1.0)
            notes.note("evaluations", step, seconds=0.75)
    return notes.run_time


def read(path):
    return run_time_of(MetricsLog(path).read().lines)


def test_the_causes_are_the_time_that_passed(clock, tmp_path):
    begin = clock.now
    run_time = train(clock, tmp_path / "time")
    assert run_time.total_seconds == pytest.approx(clock.now - begin)
    assert run_time.seconds.keys() == CAUSES.keys()
    expected = {"start": 4.0, "compiling": 7.0, "checkpoints": 1.0}
    expected |= {"evaluations": 3.0, "lost": 0.0, "other": 1.0, "steps": 40 * 0.5}
    assert dict(run_time.seconds) == pytest.approx(expected)
    assert f"{40 * 0.5 / run_time.total_seconds:.0%} in steps" in run_time.describe()
    assert read(tmp_path / "time") == run_time
    assert run_time_of([]) is None
    skipped = train(clock, tmp_path / "skipped", skipped=1)  # steps that changed nothing
    assert skipped.seconds["lost"] == pytest.approx(skipped.seconds["steps"] / 4)


@pytest.mark.parametrize("killed_at", [0, 5, 15, 35])
def test_what_is_done_again_counts_as_lost(clock, tmp_path, killed_at):
    unbroken = train(clock, tmp_path / "unbroken")
    train(clock, tmp_path / "killed", until_step=killed_at)
    clock.passes(60.0)
    resumed = train(clock, tmp_path / "killed", from_step=killed_at // PERIOD * PERIOD)
    assert resumed == read(tmp_path / "killed")
    assert resumed.num_starts == 2 and resumed.goodput < unbroken.goodput
    # The steps that were kept are as many; a process of one loop cannot tell its compiling.
    lost = 0.0 if killed_at <= 5 else 5 * 0.5
    assert resumed.seconds["steps"] == pytest.approx(unbroken.seconds["steps"])
    assert resumed.seconds["lost"] == pytest.approx(lost)
    # Nothing ran between the two.
    assert resumed.down_seconds == pytest.approx(60.0 if killed_at else 61.0)
