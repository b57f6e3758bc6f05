"""A disk that is full at any point of a save costs that save and nothing else."""

import contextlib
import hashlib
import resource

import numpy as np
import pytest

from txl_tf.errors import StorageError
from txl_tf.training.checkpoint_store import CheckpointStore

PAGE_BYTES = 4096
NUM_SIZES = 50


def arrays_of(step):
    generator = np.random.default_rng(step)
    return {f"w{number}": generator.normal(size=4096).astype("float32") for number in range(12)}


def digests(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@contextlib.contextmanager
def limited_file_size(num_bytes):
    """No file of this process may become larger, as with a quota."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def assert_only_the_save_is_lost(store, folder, save):
    """The save succeeds, or all is as before; returns whether it did."""
    before = digests(folder)
    try:
        save()
    except StorageError as error:
        assert error.exit_code == 74
        assert "it needs 196,608 bytes" in error.what
        assert str(folder) in error.where
        assert digests(folder) == before
        assert [path.name for path in folder.iterdir()] == ["step-00000001"]
        return False
    assert store.steps() == [1, 2]
    return True


def test_a_disk_of_any_size(small_disk):
    folder, set_size = small_disk
    store = CheckpointStore(folder, {})
    store.save(1, arrays_of(1))
    used = sum(
        -(-path.stat().st_size // PAGE_BYTES) for path in folder.rglob("*") if path.is_file()
    )
    outcomes = []
    for number in range(NUM_SIZES):
        assert set_size((used + 2 + number * 52 // NUM_SIZES) * PAGE_BYTES)
        outcomes.append(
            assert_only_the_save_is_lost(store, folder, lambda: store.save(2, arrays_of(2)))
        )
        if outcomes[-1]:
            store._folders.remove(2)
    assert outcomes == sorted(outcomes)  # once it fits, it fits
    assert outcomes.count(False) >= 40
    assert set_size(8 << 20)
    store.save(2, arrays_of(2))
    assert store.load_latest()[0] == 2


@pytest.mark.parametrize("num_bytes", [0, 1, 100, 5000, 100_000, 196_607])
def test_a_limit_on_the_size_of_files(tmp_path, num_bytes):
    folder = tmp_path / "checkpoints"
    store = CheckpointStore(folder, {})
    store.save(1, arrays_of(1))

    def save():
        with limited_file_size(num_bytes):
            store.save(2, arrays_of(2))

    assert not assert_only_the_save_is_lost(store, folder, save)
    store.save(2, arrays_of(2))
    assert store.load_latest()[0] == 2
