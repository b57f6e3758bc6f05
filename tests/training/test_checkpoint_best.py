"""The best checkpoint outlives the newest ones, and it is never forgotten in silence."""

import json
import os

import pytest

from tests.training.test_checkpoint_store import (
    IDENTITY,
    arrays_of,
    assert_is_state_of,
    no_space,
    store_with,
)
from txl_tf.errors import DataDamagedError, StorageError
from txl_tf.training.checkpoint_store import CheckpointStore


@pytest.fixture(params=["local", "remote"])
def folder(request, tmp_path):
    """A local folder, and the same as TensorFlow's file systems see it."""
    return str(tmp_path) if request.param == "local" else f"file://{tmp_path}"


def test_the_best_checkpoint_is_kept_beside_the_newest(folder):
    store = CheckpointStore(folder, IDENTITY, num_kept=2)
    assert store.best_step() is None
    for step in range(1, 8):
        store.save(step, arrays_of(step))
        if step in (1, 4):
            store.keep_best(step)
    assert store.steps() == [4, 6, 7]
    assert_is_state_of(4, store.load(4))
    later = CheckpointStore(folder, IDENTITY, num_kept=2)  # as after a restart
    assert later.best_step() == 4
    assert later.load_latest()[0] == 7
    later.save(8, arrays_of(8))
    assert later.steps() == [4, 7, 8]
    later.keep_best(8)
    later.save(9, arrays_of(9))
    assert later.steps() == [8, 9]


def test_only_a_checkpoint_can_be_the_best(tmp_path):
    store = store_with(tmp_path, [5])
    with pytest.raises(ValueError, match=r"one of \[5\]. Received: step=6"):
        store.keep_best(6)
    assert store.best_step() is None


def test_a_damaged_note_is_found_before_anything_is_removed(tmp_path):
    store = store_with(tmp_path, [1, 2, 3], num_kept=3)
    store.keep_best(1)
    note = tmp_path / "best.json"
    content = note.read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        note.write_bytes(damaged)
        with pytest.raises(DataDamagedError) as raised:
            CheckpointStore(tmp_path, IDENTITY).best_step()
        assert raised.value.where == str(note)
    for text in (b"", b"[]", b"7", b'{"step": 1}', content[:-3], b"[" * 100000):
        note.write_bytes(text)
        with pytest.raises(DataDamagedError):
            store.save(4, arrays_of(4))
    assert store.steps() == [1, 2, 3]
    assert store.load_latest()[0] == 3  # which is not touched by that
    note.unlink()
    store.save(4, arrays_of(4))
    assert store.steps() == [2, 3, 4]


def test_a_best_checkpoint_that_is_gone_is_found(tmp_path):
    store = store_with(tmp_path, [1, 2])
    store.keep_best(1)
    (tmp_path / "step-00000001").rename(tmp_path / "moved")
    with pytest.raises(DataDamagedError, match="the best checkpoint is missing"):
        store.best_step()


def test_a_full_disk_keeps_the_note_of_before(tmp_path, monkeypatch):
    store = store_with(tmp_path, [1, 2])
    store.keep_best(1)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", no_space)
        with pytest.raises(StorageError, match="No space left"):
            store.keep_best(2)
    assert store.best_step() == 1
    assert json.loads((tmp_path / "best.json").read_text())["step"] == 1
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_what_a_killed_note_left_is_removed(folder, tmp_path):
    store = store_with(folder, [1])
    leftover = tmp_path / ".best.json.tmp"
    leftover.write_text("{")
    assert [os.path.basename(path) for path in store.remove_leftovers()] == [leftover.name]
    assert not leftover.exists()
    assert store.remove_leftovers() == []
