"""A process that ends at any moment of a save leaves the old checkpoints or the new one."""

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests.training.test_checkpoint_store import IDENTITY, arrays_of, assert_is_state_of
from txl_tf.errors import NonFiniteError
from txl_tf.storage.files import list_folder
from txl_tf.training.checkpoint_store import CheckpointStore


class Kill(BaseException):
    """Ends everything where it stands; no handler of the store catches it."""


OPERATIONS = [
    (os, "mkdir"),
    (os, "fsync"),
    (os, "rename"),
    (os, "replace"),
    (os, "unlink"),
    (os, "rmdir"),
    (shutil, "rmtree"),
    (tf.raw_ops, "SaveV2"),
    (tf.io.gfile, "makedirs"),
    (tf.io.gfile, "GFile"),
    (tf.io.gfile, "rename"),
    (tf.io.gfile, "remove"),
    (tf.io.gfile, "rmtree"),
]


class Countdown:
    """Lets so many operations through and kills before the next one."""

    def __init__(self, num_operations):
        self.left = num_operations

    def wrap(self, function):
        def counted(*args, **kwargs):
            if self.left == 0:  # and stays there: a dead process does not clean up
                raise Kill
            self.left -= 1
            return function(*args, **kwargs)

        return counted


def killed_at(monkeypatch, num_operations, action):
    """Whether the action was killed at that operation, or had fewer."""
    countdown = Countdown(num_operations)
    with monkeypatch.context() as patched:
        for module, name in OPERATIONS:
            patched.setattr(module, name, countdown.wrap(getattr(module, name)))
        try:
            action()
        except Kill:
            return True
    return False


@pytest.mark.parametrize(
    "scheme",
    [pytest.param("", id="local"), pytest.param("file://", id="remote", marks=pytest.mark.slow)],
)
def test_a_kill_at_any_operation_of_a_save_leaves_what_can_be_used(tmp_path, monkeypatch, scheme):
    num_operations = 0
    while True:
        folder = tmp_path / str(num_operations)
        store = CheckpointStore(f"{scheme}{folder}", IDENTITY, num_kept=2)
        for step in (1, 2, 3):
            store.save(step, arrays_of(step))
        (folder / "step-00000003" / "state.index").write_bytes(b"damaged")
        was_killed = killed_at(monkeypatch, num_operations, lambda s=store: s.save(3, arrays_of(3)))
        # Step 3 is damaged and made anew, and step 2 is there whatever happens.
        step, arrays, complaints = store.load_latest()
        assert step in (2, 3)
        assert_is_state_of(step, arrays)
        assert (step == 3) or len(complaints) <= 1
        store.remove_leftovers()
        assert store.load_latest()[0] == step
        names = {path.name for path in folder.iterdir()}
        assert names <= {"step-00000002", "step-00000003"}
        store.save(4, arrays_of(4))
        assert store.load_latest()[0] == 4
        assert len(store.steps()) == 2
        if not was_killed:
            break
        num_operations += 1
    assert num_operations >= 10


@pytest.mark.parametrize("scheme", ["", "file://"], ids=["local", "remote"])
def test_a_kill_at_any_operation_of_the_first_save_is_no_damage(tmp_path, monkeypatch, scheme):
    num_operations, was_killed = 0, True
    while was_killed:
        folder = tmp_path / str(num_operations)
        store = CheckpointStore(f"{scheme}{folder}", IDENTITY)
        was_killed = killed_at(monkeypatch, num_operations, lambda s=store: s.save(1, arrays_of(1)))
        latest = store.load_latest()
        assert latest is None or latest[0] == 1
        removed = store.remove_leftovers()
        # In a store the hidden folder, and the one that its files are being moved to.
        assert len(removed) <= (2 if scheme else 1)
        assert list_folder(store._folder) == ([] if latest is None else ["step-00000001"])
        assert store.steps() == ([] if latest is None else [1])
        num_operations += 1


def test_a_remote_checkpoint_that_lost_its_manifest_is_damage_and_not_a_leftover(tmp_path):
    store = CheckpointStore(f"file://{tmp_path}", IDENTITY)
    store.save(1, arrays_of(1))
    store.save(2, arrays_of(2))
    (tmp_path / "step-00000002" / "manifest.json").unlink()
    assert store.remove_leftovers() == []
    step, _, complaints = store.load_latest()
    assert step == 1
    assert "step-00000002/manifest.json: the file is missing" in complaints[0]


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", ["optimizer/double", "memory/states/000", "model/scalar"])
def test_no_checkpoint_holds_what_is_not_finite(tmp_path, name, value):
    store = CheckpointStore(tmp_path, IDENTITY, num_kept=1)
    store.save(1, arrays_of(1))
    arrays = arrays_of(2)
    damaged = np.array(arrays[name])
    damaged[(-1,) * damaged.ndim] = value
    with pytest.raises(NonFiniteError) as raised:
        store.save(2, arrays | {name: damaged})
    assert raised.value.exit_code == 70
    assert raised.value.where == name
    assert store.steps() == [1]


def test_the_largest_and_smallest_finite_values_are_saved(tmp_path):
    store = CheckpointStore(tmp_path, IDENTITY)
    types = ("float16", "float32", "float64", tf.bfloat16.as_numpy_dtype)
    arrays = {}
    for number, dtype in enumerate(types):
        largest = tf.as_dtype(dtype).max
        arrays[f"{number}"] = np.asarray([largest, -largest, 0.0, -0.0], dtype)
    many = np.ones(3_000_001, "float32")
    many[-1] = np.finfo("float32").tiny / 4
    store.save(1, arrays | {"many": many})
    for name, array in store.load(1).items():
        np.testing.assert_array_equal(array, (arrays | {"many": many})[name])
    many[-1] = np.nan
    with pytest.raises(NonFiniteError):
        store.save(2, {"many": many})
