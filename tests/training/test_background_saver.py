"""Saving behind the training's back loses nothing and hides no failure."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.slow_case import slow_case
from tests.training.test_checkpoint_store import IDENTITY, arrays_of, no_space_for_tensors
from txl_tf.errors import NonFiniteError, StorageError
from txl_tf.training.background_saver import BackgroundSaver
from txl_tf.training.checkpoint_store import CheckpointStore

ROOT = Path(__file__).resolve().parents[2]
STATE_VALUES = 1 << 18


class SlowStore:
    """Saves when it is allowed to."""

    def __init__(self):
        self.may_save = threading.Event()
        self.saved = []

    def save(self, step, arrays, ledger=None):
        assert self.may_save.wait(30)
        self.saved.append((step, arrays))


def test_what_was_submitted_is_durable_after_waiting(tmp_path):
    store = CheckpointStore(tmp_path, IDENTITY, num_kept=2)
    with BackgroundSaver(store) as saver:
        for step in (1, 2, 3):
            saver.submit(step, arrays_of(step))
        saver.wait()
        assert store.steps() == [2, 3]
        saver.submit(4, arrays_of(4))
    assert store.steps() == [3, 4]
    with pytest.raises(ValueError, match="closed saver"):
        saver.submit(5, arrays_of(5))


def test_submitting_returns_at_once_and_one_save_is_in_flight():
    store = SlowStore()
    saver = BackgroundSaver(store)
    begin = time.monotonic()
    saver.submit(1, {})
    saver.check()
    assert time.monotonic() - begin < 5
    second = threading.Thread(target=saver.submit, args=(2, {}))
    second.start()
    second.join(0.1)
    assert second.is_alive()  # it waits for the first
    store.may_save.set()
    second.join(30)
    saver.close()
    saver.close()
    assert [step for step, _ in store.saved] == [1, 2]


def test_a_failure_is_reported_once_at_the_next_call_and_is_no_checkpoint(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, IDENTITY)
    saver = BackgroundSaver(store)
    saver.submit(1, arrays_of(1))
    saver.wait()
    with monkeypatch.context() as patched:
        patched.setattr(tf.raw_ops, "SaveV2", no_space_for_tensors)
        saver.submit(2, arrays_of(2))
        with pytest.raises(StorageError, match="No space left on device"):
            saver.submit(3, arrays_of(3))  # which is not saved
        saver.submit(4, arrays_of(4))
        with pytest.raises(StorageError, match="step 4"):
            report_of(saver)
    saver.wait()
    assert store.steps() == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    saver.submit(5, {"x": np.asarray([np.nan])})
    with pytest.raises(NonFiniteError):
        saver.close()
    assert store.steps() == [1]


def report_of(saver):
    """What a training loop sees that looks at every step and never waits."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        saver.check()
        time.sleep(0.01)


def test_a_failed_save_does_not_hide_the_error_that_ends_the_run(tmp_path):
    store = CheckpointStore(tmp_path, IDENTITY)
    with pytest.raises(KeyError, match="the reason") as raised, BackgroundSaver(store) as saver:
        saver.submit(1, {"x": np.asarray([np.inf])})
        raise KeyError("the reason")
    assert "not saved either" in raised.value.__notes__[0]
    assert "not finite" in raised.value.__notes__[0]


PROGRAM = f"""
import sys, time
import numpy as np
from txl_tf.training.background_saver import BackgroundSaver
from txl_tf.training.checkpoint_store import CheckpointStore

class Endless:
    def save(self, step, arrays, ledger=None):
        time.sleep(1000)

saver = BackgroundSaver(Endless() if sys.argv[1] == "exit" else CheckpointStore(sys.argv[2], {{}}))
for step in range(1, 100000):
    saver.submit(step, {{"x": np.full({STATE_VALUES}, step, "float32")}})
    if sys.argv[1] == "exit":
        break
    if step > 1:
        print(step - 1, flush=True)
"""


def process(*arguments):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )


@pytest.mark.slow
def test_the_interpreter_exits_while_a_save_is_in_flight():
    with process("exit", "") as child:
        assert child.wait(60) == 0


@pytest.mark.parametrize("seed", [0, *(slow_case(seed) for seed in range(1, 11))])
def test_a_kill_while_a_save_is_in_flight_keeps_what_was_durable(tmp_path, seed):
    generator = np.random.default_rng(seed)
    with process("save", str(tmp_path)) as child:
        for _ in range(5):
            durable = int(child.stdout.readline())
        time.sleep(generator.uniform(0.0, 0.02))
        os.kill(child.pid, signal.SIGKILL)
        reported = child.stdout.read().split()
    durable = int(reported[-1]) if reported else durable
    store = CheckpointStore(tmp_path, {})
    store.remove_leftovers()
    step, arrays, complaints = store.load_latest()
    assert complaints == []
    assert step >= durable
    np.testing.assert_array_equal(arrays["x"], np.full(STATE_VALUES, step, "float32"))
    assert {path.name for path in tmp_path.iterdir()} == {f"step-{s:08d}" for s in store.steps()}
