"""The same promises where TensorFlow's file systems are the storage."""

import pytest
import tensorflow as tf

from tests.training.test_checkpoint_store import (
    IDENTITY,
    arrays_of,
    assert_is_state_of,
)
from txl_tf.errors import MismatchError, StorageError
from txl_tf.training.checkpoint_store import CheckpointStore


@pytest.fixture
def folder(request):
    return f"ram://{request.node.name}/checkpoints"


def test_checkpoints_in_memory_are_kept_rotated_and_read(folder):
    store = CheckpointStore(folder, IDENTITY, num_kept=2)
    assert (store.steps(), store.load_latest()) == ([], None)
    for step in (5, 10, 15):
        assert store.save(step, arrays_of(step)) == f"{folder}/step-{step:08d}"
    assert store.steps() == [10, 15]
    step, arrays, complaints = CheckpointStore(folder, IDENTITY).load_latest()
    assert (step, complaints) == (15, [])
    assert_is_state_of(15, arrays)
    assert sorted(tf.io.gfile.listdir(folder)) == ["step-00000010", "step-00000015"]
    assert sorted(tf.io.gfile.listdir(f"{folder}/step-00000015")) == [
        "manifest.json",
        "state.data-00000-of-00001",
        "state.index",
    ]


def test_an_unfinished_checkpoint_is_not_there_and_is_cleaned_up(folder):
    store = CheckpointStore(folder, IDENTITY)
    store.save(5, arrays_of(5))
    store.save(10, arrays_of(10))
    unfinished = f"{folder}/step-00000010"
    with tf.io.gfile.GFile(f"{unfinished}/unfinished", "w") as file:
        file.write("")
    assert store.steps() == [5, 10]  # the manifest decides
    tf.io.gfile.remove(f"{unfinished}/manifest.json")
    assert store.steps() == [5]
    assert store.load_latest()[0] == 5
    assert store.remove_leftovers() == [unfinished]
    assert tf.io.gfile.listdir(folder) == ["step-00000005"]


def test_damage_is_found_and_the_one_before_is_used(folder):
    store = CheckpointStore(folder, IDENTITY)
    store.save(5, arrays_of(5))
    store.save(10, arrays_of(10))
    for name in ("state.index", "state.data-00000-of-00001", "manifest.json"):
        path = f"{folder}/step-00000010/{name}"
        tf.io.gfile.remove(path)
        step, arrays, complaints = store.load_latest()
        assert step == 5
        assert_is_state_of(5, arrays)
        assert complaints == [f"{path}: the file is missing"]
        store.save(10, arrays_of(10))
        assert_is_state_of(10, store.load(10))
    with pytest.raises(MismatchError, match="seed"):
        CheckpointStore(folder, IDENTITY | {"seed": 8}).load_latest()


def test_a_failed_save_is_no_checkpoint(folder, monkeypatch):
    store = CheckpointStore(folder, IDENTITY)
    store.save(5, arrays_of(5))
    with monkeypatch.context() as patched:
        patched.setattr(tf.raw_ops, "SaveV2", fail)
        with pytest.raises(StorageError, match="No space left") as raised:
            store.save(10, arrays_of(10))
    assert raised.value.where == f"{folder}/step-00000010"
    assert tf.io.gfile.listdir(folder) == ["step-00000005"]


def fail(prefix, **kwargs):
    with tf.io.gfile.GFile(f"{prefix}.data-00000-of-00001", "w") as file:
        file.write("part")
    raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")


def test_a_store_that_does_not_answer_is_not_a_damaged_checkpoint(folder, monkeypatch):
    store = CheckpointStore(folder, IDENTITY)
    store.save(5, arrays_of(5))

    def out_of_reach(*args):
        raise tf.errors.UnavailableError(None, None, "the bucket does not answer")

    for module, name in ((tf.io.gfile, "GFile"), (tf.compat.v1.train, "NewCheckpointReader")):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, out_of_reach)
            with pytest.raises(StorageError, match="the bucket does not answer"):
                store.load_latest()
