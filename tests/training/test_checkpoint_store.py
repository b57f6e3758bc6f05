"""Checkpoints are complete and what was written, or not there, also where a thread saves."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from txl_tf.errors import MismatchError, NonFiniteError, StorageError
from txl_tf.training.checkpoint_store import BackgroundSaver, CheckpointStore

IDENTITY = {
    "model": {"num_layers": 2, "dropout": 0.1, "cutoffs": (4, 8)},
    "data": {"fingerprint": "6b86b273"},
    "seed": 7,
}


def arrays_of(step):
    """One array of every dtype that a state has, different at every step."""
    generator = np.random.default_rng(step)
    return {
        "model/block_0/kernel": generator.normal(size=(3, 4)).astype("float32"),
        "model/scalar": np.float32(0.1 + step),
        "optimizer/double": generator.normal(size=(2, 3)),
        "optimizer/iteration": np.asarray(step, "int64"),
        "memory/states/000": generator.normal(size=(2, 3, 2)).astype(ml_dtypes.bfloat16),
        "memory/valid_length": np.asarray([0, step], "int32"),
        "memory/empty": np.zeros((2, 0, 4), "float32"),
        "flags": np.asarray([True, False]),
        "seeds": np.asarray([2**32 - 1, 5], "uint32"),
    }


def assert_is_state_of(step, arrays):
    expected = arrays_of(step)
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        assert isinstance(arrays[name], np.ndarray)
        assert arrays[name].dtype == array.dtype, name
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)


def store_with(folder, steps, num_kept=10, identity=None):
    store = CheckpointStore(folder, identity or IDENTITY, num_kept)
    for step in steps:
        store.save(step, arrays_of(step))
    return store


def hidden_in(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_what_was_saved_is_loaded_to_the_last_bit_in_its_dtype(tmp_path):
    store = store_with(tmp_path / "new" / "folder", [3, 12])
    assert store.steps() == [3, 12]
    assert_is_state_of(3, store.load(3))
    step, arrays, complaints = store.load_latest()
    assert (step, complaints) == (12, [])
    assert_is_state_of(12, arrays)


def test_a_folder_without_checkpoints_has_none(tmp_path):
    assert CheckpointStore(tmp_path / "missing", IDENTITY).load_latest() is None
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "step-12").mkdir()  # not a name that the store gives
    store = CheckpointStore(tmp_path, IDENTITY)
    assert (store.steps(), store.load_latest()) == ([], None)


def test_any_tensorflow_program_can_read_a_checkpoint(tmp_path):
    store_with(tmp_path, [4])
    reader = tf.train.load_checkpoint(str(tmp_path / "step-00000004" / "state"))
    expected = arrays_of(4)
    assert set(reader.get_variable_to_shape_map()) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(reader.get_tensor(name), array, err_msg=name)


@pytest.mark.parametrize("num_kept", [1, 3])
def test_the_newest_checkpoints_are_kept(tmp_path, num_kept):
    store = CheckpointStore(tmp_path, IDENTITY, num_kept)
    for step in range(1, 7):
        store.save(step * 5, arrays_of(step * 5))
        assert store.steps() == [5 * each for each in range(1, step + 1)][-num_kept:]
    assert len(list(tmp_path.iterdir())) == num_kept
    assert_is_state_of(30, store.load_latest()[1])


@pytest.mark.parametrize("num_kept", [1, 2])
def test_a_damaged_later_checkpoint_does_not_push_out_a_whole_one(tmp_path, num_kept):
    store = store_with(tmp_path, [5, 10], num_kept=2)
    (tmp_path / "step-00000010" / "state.index").write_bytes(b"")
    assert store.load_latest()[0] == 5
    store = CheckpointStore(tmp_path, IDENTITY, num_kept)
    for step in (6, 7):  # going on from there, and saving at other steps than before
        store.save(step, arrays_of(step))
        assert store.load_latest()[0] == step
    store.save(11, arrays_of(11))
    assert store.steps() == [10, 11][-num_kept:]


def test_saving_a_step_again_replaces_it(tmp_path):
    store = store_with(tmp_path, [5])
    store.save(5, arrays_of(6))
    assert store.steps() == [5]
    assert_is_state_of(6, store.load(5))


def test_what_a_killed_save_left_is_never_listed_and_soon_removed(tmp_path):
    store = store_with(tmp_path, [5])
    leftover = tmp_path / ".step-00000010.4242.tmp"
    leftover.mkdir()
    for path in (tmp_path / "step-00000005").iterdir():
        (leftover / path.name).write_bytes(path.read_bytes())
    assert store.steps() == [5]
    assert store.load_latest()[0] == 5
    store.save(6, arrays_of(6))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000005", "step-00000006"]


def test_another_identity_is_refused_and_the_keys_are_named(tmp_path):
    store_with(tmp_path, [5])
    other = {**IDENTITY, "seed": 8, "model": {**IDENTITY["model"], "dropout": 0.2, "new": 1}}
    with pytest.raises(MismatchError) as raised:
        CheckpointStore(tmp_path, other).load_latest()
    assert raised.value.exit_code == 78
    assert raised.value.where == str(tmp_path / "step-00000005")
    assert "model.dropout (stored 0.1, now 0.2)" in raised.value.what
    assert "model.new (stored None, now 1)" in raised.value.what
    assert "seed (stored 7, now 8)" in raised.value.what
    for same in ("num_layers", "cutoffs", "fingerprint"):
        assert same not in raised.value.what


def no_space(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_space_for_tensors(prefix, **kwargs):
    """TensorFlow has written a part of the file when the disk is full."""
    with open(prefix + ".data-00000-of-00001", "wb") as file:
        file.write(b"\0" * 10)
    raise tf.errors.ResourceExhaustedError(None, None, f"{prefix}; No space left on device\nmore")


@pytest.mark.parametrize(
    ("module", "name", "failing"),
    [
        (os, "fsync", no_space),
        (tf.raw_ops, "SaveV2", no_space),
        (tf.raw_ops, "SaveV2", no_space_for_tensors),
        (json, "dumps", no_space),
    ],
)
def test_a_full_disk_leaves_the_older_checkpoint_and_nothing_else(
    tmp_path, monkeypatch, module, name, failing
):
    store = store_with(tmp_path, [5], num_kept=1)
    with monkeypatch.context() as patched:
        patched.setattr(module, name, failing)
        with pytest.raises(StorageError) as raised:
            store.save(6, arrays_of(6))
    assert raised.value.exit_code == 74
    assert "step 6" in raised.value.what
    assert "No space left on device" in raised.value.what
    assert len(str(raised.value).splitlines()) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000005"]
    assert_is_state_of(5, store.load_latest()[1])
    store.save(7, arrays_of(7))  # once there is room again
    assert store.steps() == [7]


def test_an_unwritable_folder_is_a_storage_error(tmp_path):
    # Permissions do not stop the superuser, but a file in the way does.
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError) as raised:
        CheckpointStore(tmp_path / "file" / "checkpoints", IDENTITY).save(1, arrays_of(1))
    assert raised.value.exit_code == 74


def test_everything_is_forced_to_the_disk_before_the_checkpoint_appears(tmp_path, monkeypatch):
    synchronized = []
    fsync = os.fsync

    def recorded(descriptor):
        synchronized.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    store_with(tmp_path, [5])
    names = [os.path.basename(path) for path in synchronized]
    files = {path.name for path in (tmp_path / "step-00000005").iterdir()}
    assert set(names[:-2]) == files
    assert names[-2].startswith(".step-00000005")  # the folder, still under its hidden name
    assert synchronized[-1] == str(tmp_path)  # its new name


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
from txl_tf.training.checkpoint_store import BackgroundSaver
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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(11))
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
