"""A checkpoint is whole or absent, also if a thread saves it."""

import contextlib
import errno
import os
import shutil
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.slow_case import slow_case
from tests.storage.places import KINDS, place
from tests.training.saved_states import IDENTITY, arrays_of, assert_is_state_of
from txl_tf.errors import DataDamagedError, MismatchError, NonFiniteError, StorageError
from txl_tf.storage.files import list_folder
from txl_tf.training.checkpoints import checkpoint_files
from txl_tf.training.checkpoints.background_saver import BackgroundSaver
from txl_tf.training.checkpoints.checkpoint_store import CheckpointStore

FILES = ["manifest.json", "state.data"]


def store_with(folder, steps, num_kept=10):
    store = CheckpointStore(folder, IDENTITY, num_kept)
    for step in steps:
        store.save(step, arrays_of(step))
    return store


@pytest.fixture(params=KINDS)
def folder(request, tmp_path):
    return place(request.param, tmp_path, "checkpoints")


def test_the_newest_and_the_best_are_kept_and_loaded_to_the_last_bit(folder):
    store = CheckpointStore(folder, IDENTITY, num_kept=2)
    assert (store.steps(), store.load_latest(), store.best_step()) == ([], None, None)
    for step in range(1, 8):
        assert store.save(step, arrays_of(step)) == f"{folder}/step-{step:08d}"
        if step in (1, 4):
            store.keep_best(step)
    store = CheckpointStore(folder, IDENTITY, num_kept=2)  # as after a restart
    assert (store.steps(), store.best_step()) == ([4, 6, 7], 4)
    for step in store.steps():
        assert_is_state_of(step, store.load(step))
    step, arrays, complaints = store.load_latest()
    assert (step, complaints) == (7, [])
    assert_is_state_of(7, arrays)
    assert sorted(tf.io.gfile.listdir(f"{folder}/step-00000007")) == FILES
    store.keep_best(7)
    for step in (8, 9):
        store.save(step, arrays_of(step))
    assert store.steps() == [7, 8, 9]
    store.save(9, arrays_of(16))
    assert_is_state_of(16, store.load(9))


def test_a_damaged_or_lost_best_checkpoint_is_found_before_anything_is_removed(tmp_path):
    store = store_with(tmp_path, [1, 2, 3], num_kept=3)
    store.keep_best(1)
    note = tmp_path / "best.json"
    content = note.read_bytes()
    for place_of_bit in range(len(content)):
        damaged = bytearray(content)
        damaged[place_of_bit] ^= 1 << place_of_bit % 8
        note.write_bytes(damaged)
        with pytest.raises(DataDamagedError) as raised:
            store.save(4, arrays_of(4))
        assert raised.value.where == str(note)
    assert store.steps() == [1, 2, 3]
    assert store.load_latest()[0] == 3
    note.write_bytes(content)
    (tmp_path / "step-00000001").rename(tmp_path / "moved")
    with pytest.raises(DataDamagedError, match="the best checkpoint is missing"):
        store.best_step()


@pytest.mark.parametrize("num_kept", [1, 2])
def test_a_damaged_later_checkpoint_does_not_push_out_a_whole_one(tmp_path, num_kept):
    store = store_with(tmp_path, [5, 10], num_kept=2)
    (tmp_path / "step-00000010" / "state.data").write_bytes(b"")
    assert store.load_latest()[0] == 5
    store = CheckpointStore(tmp_path, IDENTITY, num_kept)
    for step in (6, 7):  # going on from there, and saving at other steps than before
        store.save(step, arrays_of(step))
        assert store.load_latest()[0] == step
    store.save(11, arrays_of(11))
    assert store.steps() == [10, 11][-num_kept:]


def test_another_identity_is_refused_and_the_keys_are_named(tmp_path):
    store_with(tmp_path, [5])
    other = {**IDENTITY, "seed": 8, "model": {**IDENTITY["model"], "dropout": 0.2, "new": 1}}
    with pytest.raises(MismatchError) as raised:
        CheckpointStore(tmp_path, other).load_latest()
    assert raised.value.exit_code == 78
    assert raised.value.where == str(tmp_path / "step-00000005")
    assert "3 settings differ: model.dropout (stored 0.1, now 0.2), model.new" in raised.value.what


@pytest.fixture
def store_and_folder(tmp_path):
    """A store with two checkpoints and the folder of the newer one."""
    return store_with(tmp_path, [5, 10]), tmp_path / "step-00000010"


def assert_passed_over(store, path):
    """The newer checkpoint makes way for the older one, with a reason that names the file."""
    step, arrays, complaints = store.load_latest()
    assert step == 5
    assert_is_state_of(5, arrays)
    assert len(complaints) == 1
    assert str(path) in complaints[0]


@pytest.mark.parametrize("file_name", FILES)
def test_a_file_with_a_flipped_bit_cut_or_missing_is_found(store_and_folder, file_name):
    store, folder = store_and_folder
    path = folder / file_name
    content = path.read_bytes()

    def assert_refused():
        with pytest.raises(DataDamagedError) as raised:
            store.load(10)
        assert raised.value.where.startswith(str(path))

    # In place, because a file system may force a rewritten file to the disk.
    with path.open("r+b", buffering=0) as file:
        for number, byte in enumerate(content):
            os.pwrite(file.fileno(), bytes([byte ^ 1 << number % 8]), number)
            assert_refused()
            os.pwrite(file.fileno(), bytes([byte]), number)
    assert_is_state_of(10, store.load(10))
    for length in reversed(range(len(content))):
        os.truncate(path, length)
        assert_refused()
    assert_passed_over(store, path)
    path.unlink()
    assert_passed_over(store, path)


def test_a_checkpoint_of_another_format_is_refused_as_such(store_and_folder, monkeypatch):
    store, folder = store_and_folder
    monkeypatch.setattr(checkpoint_files, "FORMAT_VERSION", checkpoint_files.FORMAT_VERSION + 1)
    with pytest.raises(MismatchError, match=r"format 4; this version.*reads format 5") as raised:
        store.load(10)
    assert (raised.value.exit_code, raised.value.where) == (78, str(folder / "manifest.json"))


def test_if_all_are_damaged_it_is_an_error_and_not_a_new_beginning(store_and_folder):
    store, folder = store_and_folder
    for step_folder in folder.parent.iterdir():
        (step_folder / "state.data").write_bytes(b"")
    with pytest.raises(DataDamagedError, match=r"All checkpoints are damaged \(2\)") as raised:
        store.load_latest()
    assert raised.value.exit_code == 65
    assert raised.value.where == str(folder.parent)


def test_in_a_store_the_manifest_decides_and_what_is_unfinished_is_removed(tmp_path):
    folder = f"ram://{tmp_path.name}/checkpoints"
    store = store_with(folder, [5, 10])
    tf.io.gfile.remove(f"{folder}/step-00000010/manifest.json")
    assert store.remove_leftovers() == []
    assert_passed_over(store, f"{folder}/step-00000010/manifest.json: the file is missing")
    with tf.io.gfile.GFile(f"{folder}/step-00000010/unfinished", "w") as file:
        file.write("")
    assert store.steps() == [5]
    assert store.load_latest()[2] == []
    assert store.remove_leftovers() == [f"{folder}/step-00000010"]
    assert tf.io.gfile.listdir(folder) == ["step-00000005"]


@contextlib.contextmanager
def no_space_for_arrays(path):
    """A part of the file is written when the disk is full."""
    with tf.io.gfile.GFile(path, "w") as file:
        file.write("part")
    raise OSError(errno.ENOSPC, "No space left on device\nmore", path)
    yield


def test_a_full_disk_leaves_the_older_checkpoint_and_nothing_else(folder, monkeypatch):
    store = store_with(folder, [5], num_kept=1)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_files, "open_new", no_space_for_arrays)
        with pytest.raises(StorageError, match="No space left on device") as raised:
            store.save(6, arrays_of(6))
    assert raised.value.exit_code == 74
    assert "step 6" in raised.value.what
    assert len(str(raised.value).splitlines()) == 3
    assert tf.io.gfile.listdir(folder) == ["step-00000005"]
    assert_is_state_of(5, store.load_latest()[1])
    store.save(7, arrays_of(7))  # once there is room again
    assert store.steps() == [7]


def test_everything_is_forced_to_the_disk_before_the_checkpoint_appears(tmp_path, monkeypatch):
    synchronized = []
    fsync = os.fsync

    def recorded(descriptor):
        synchronized.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    store_with(tmp_path, [5])
    names = [os.path.basename(path) for path in synchronized]
    assert set(names[:-2]) >= set(FILES)
    assert names[-2].startswith(".step-00000005")  # the folder, still under its hidden name
    assert synchronized[-1] == str(tmp_path)  # its new name


def test_no_checkpoint_holds_what_is_not_finite(tmp_path):
    types = ("float16", "float32", "float64", tf.bfloat16.as_numpy_dtype)
    # The largest numbers, whose sum would overflow.
    arrays = {str(dtype): np.full(3, tf.as_dtype(dtype).max, dtype) for dtype in types}
    store = CheckpointStore(tmp_path, IDENTITY, num_kept=1)
    store.save(1, arrays)
    for name in arrays:
        for value in (np.inf, -np.inf, np.nan):
            damaged = arrays[name].copy()
            damaged[-1] = value
            with pytest.raises(NonFiniteError) as raised:
                store.save(2, arrays | {name: damaged})
            assert (raised.value.exit_code, raised.value.where) == (70, name)
    assert store.steps() == [1]


class Kill(BaseException):
    """Ends everything where it stands; no handler of the store catches it."""


OPERATIONS = [
    *((os, name) for name in ("mkdir", "fsync", "rename", "replace", "unlink", "rmdir")),
    (shutil, "rmtree"),
    (checkpoint_files, "open_new"),
    *((tf.io.gfile, name) for name in ("makedirs", "GFile", "rename", "remove", "rmtree")),
]


def killed_at(monkeypatch, num_operations, action):
    """True if the action was killed at that operation, False if it had fewer."""
    left = num_operations

    def wrap(function):
        def counted(*args, **kwargs):
            nonlocal left
            if left == 0:  # and stays there: a dead process does not clean up
                raise Kill
            left -= 1
            return function(*args, **kwargs)

        return counted

    with monkeypatch.context() as patched:
        for module, name in OPERATIONS:
            patched.setattr(module, name, wrap(getattr(module, name)))
        try:
            action()
        except Kill:
            return True
    return False


@pytest.mark.parametrize("scheme", ["", slow_case("file://")])
@pytest.mark.parametrize(("step", "step_before"), [(1, None), (3, 2)])
def test_a_kill_at_any_operation_of_a_save_leaves_what_can_be_used(
    tmp_path, monkeypatch, scheme, step, step_before
):
    """Of the first save of all, and of one that replaces a damaged checkpoint."""
    num_operations, was_killed = 0, True
    while was_killed:
        folder = tmp_path / str(num_operations)
        store = store_with(f"{scheme}{folder}", range(1, step + 1) if step_before else [], 2)
        if step_before:
            (folder / f"step-{step:08d}" / "state.data").write_bytes(b"damaged")
        was_killed = killed_at(
            monkeypatch, num_operations, lambda s=store: s.save(step, arrays_of(step))
        )
        latest = store.load_latest()
        step_now = latest[0] if latest else None
        assert step_now in (step, step_before)
        if latest:
            assert_is_state_of(*latest[:2])
        store.remove_leftovers()
        assert (store.load_latest() or [None])[0] == step_now
        names = list_folder(str(folder))
        assert set(names) <= {f"step-{each:08d}" for each in (step, step_before) if each}
        assert step_before or len(names) == len(store.steps())
        store.save(4, arrays_of(4))
        assert store.load_latest()[0] == 4
        num_operations += 1
    assert num_operations >= 10


def test_submitting_returns_at_once_and_one_save_is_in_flight(tmp_path, monkeypatch):
    may_save, steps = threading.Event(), []

    def save(self, step, arrays, ledger=None):
        assert may_save.wait(30)
        steps.append(step)

    monkeypatch.setattr(CheckpointStore, "save", save)
    saver = BackgroundSaver(CheckpointStore(tmp_path, IDENTITY))
    saver.submit(1, {})
    saver.check()
    second = threading.Thread(target=saver.submit, args=(2, {}))
    second.start()
    second.join(0.1)
    assert second.is_alive()  # it waits for the first
    may_save.set()
    second.join(30)
    saver.wait()
    assert steps == [1, 2]


def test_a_failure_is_reported_once_at_the_next_call_and_is_no_checkpoint(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, IDENTITY)
    saver = BackgroundSaver(store)
    saver.submit(1, arrays_of(1))
    saver.wait()
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_files, "open_new", no_space_for_arrays)
        saver.submit(2, arrays_of(2))
        with pytest.raises(StorageError, match="No space left on device"):
            saver.submit(3, arrays_of(3))  # which is not saved
        saver.submit(4, arrays_of(4))
        with pytest.raises(StorageError, match="step 4"):
            saver.wait()
    saver.check()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_a_failed_save_does_not_hide_the_error_that_ends_the_run(tmp_path):
    store = CheckpointStore(tmp_path, IDENTITY)
    with pytest.raises(KeyError, match="the reason") as raised, BackgroundSaver(store) as saver:
        saver.submit(1, {"x": np.asarray([np.inf])})
        raise KeyError("the reason")
    assert "not saved either" in raised.value.__notes__[0]
    assert "not finite" in raised.value.__notes__[0]
