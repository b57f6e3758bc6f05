"""Whoever has lost the lock of a folder changes nothing in it, nor where a link leads."""

import errno
import fcntl
import json
import os

import pytest

from txl_tf.errors import OutputExistsError
from txl_tf.storage.files import list_folder, path_exists, read_file, remove_folder, write_file
from txl_tf.storage.locks import DirectoryLock
from txl_tf.storage.store_lock import LOCK_FILE
from txl_tf.storage.writable_folder import WritableFolder

FORGED = {"host": "elsewhere", "pid": 7, "since": "yesterday", "token": "0" * 32}


def quick(folder):
    return DirectoryLock(folder, heartbeat_seconds=0.02, stale_seconds=0.3, settle_seconds=0.0)


@pytest.fixture(params=["local", "ram"])
def folder(request, tmp_path):
    return str(tmp_path / "run") if request.param == "local" else f"ram://{tmp_path.name}/run"


def delete_and_begin_anew(folder):
    remove_folder(folder)
    return quick(folder)


def replace_lock(folder):
    os.unlink(f"{folder}/{LOCK_FILE}") if "://" not in folder else None
    write_file(f"{folder}/{LOCK_FILE}", json.dumps(FORGED).encode())


CHANGES = {
    "write": lambda writable: writable.write("new.txt", b"new"),
    "write below": lambda writable: writable.subfolder("below").write("new.txt", b"new"),
    "make": lambda writable: writable.subfolder("made").make(),
    "remove a file": lambda writable: writable.remove_file("old.txt"),
    "remove a folder": lambda writable: writable.remove_folder("sub"),
    "rename": lambda writable: writable.rename("old.txt", "new.txt"),
    "remove leftovers": lambda writable: writable.remove_temporaries(),
    "by path": lambda writable: writable.reached_by_path().__enter__(),
}
LOCAL_CHANGES = {
    "append": lambda writable: writable.append("old.txt", b"new"),
    "truncate": lambda writable: writable.truncate("old.txt", 1),
    "new": lambda writable: writable.write_new("new.txt", b"new"),
    "make new": lambda writable: writable.make_new("made"),
}


def fill(folder, content):
    writable = WritableFolder.at(folder)
    writable.write("old.txt", content)
    writable.subfolder("sub").write("file.txt", content)
    writable.write(".left.tmp", content)


def contents(folder):
    names = [name for name in list_folder(folder) if name != "sub" and ".lock" not in name]
    return {name: read_file(f"{folder}/{name}") for name in names}, list_folder(f"{folder}/sub")


@pytest.mark.parametrize("kind", [*CHANGES, *LOCAL_CHANGES])
def test_a_folder_that_was_begun_anew_is_not_touched(folder, kind):
    if kind in LOCAL_CHANGES and "://" in folder:
        pytest.skip("a store has no such change")
    with quick(folder) as first:
        fill(folder, b"first")
        writable = first.folder
        with delete_and_begin_anew(folder):
            fill(folder, b"second")
            before = contents(folder)
            with pytest.raises(OutputExistsError) as raised:
                {**CHANGES, **LOCAL_CHANGES}[kind](writable)
            assert raised.value.exit_code == 73
            assert len(str(raised.value).splitlines()) == 3
            assert contents(folder) == before
    assert contents(folder) == before


def test_a_lock_that_was_given_back_is_none(folder):
    with quick(folder) as lock:
        writable = lock.folder
        writable.write("kept.txt", b"")
    with pytest.raises(OutputExistsError, match="given back"):
        writable.write("new.txt", b"new")
    assert list_folder(folder) == ["kept.txt"]


def test_a_lock_of_another_owner_in_its_place_counts(folder):
    with quick(folder) as lock:
        replace_lock(folder)
        with pytest.raises(OutputExistsError, match="process 7 on elsewhere"):
            lock.folder.write("new.txt", b"new")
    # It is for the other one to remove.
    assert json.loads(read_file(f"{folder}/{LOCK_FILE}")) == FORGED


def test_without_its_lock_file_a_local_folder_stays_locked_and_is_named_again(tmp_path):
    with quick(tmp_path) as lock:
        (tmp_path / LOCK_FILE).unlink()
        with pytest.raises(OutputExistsError):
            quick(tmp_path).__enter__()
        lock.check()
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()
        with pytest.raises(OutputExistsError, match=f"process {os.getpid()} on"):
            quick(tmp_path).__enter__()
    assert os.listdir(tmp_path) == []


def test_where_folders_cannot_be_locked_the_file_is_the_lock(tmp_path, monkeypatch):
    flock = fcntl.flock

    def no_folders(descriptor, operation):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", no_folders)
    with quick(tmp_path / "run") as first:
        with pytest.raises(OutputExistsError, match=f"process {os.getpid()} on"):
            quick(tmp_path / "run").__enter__()
        (tmp_path / "run" / LOCK_FILE).unlink()
        with quick(tmp_path / "run") as second:
            with pytest.raises(OutputExistsError):
                first.folder.write("new.txt", b"new")
            second.folder.write("new.txt", b"second")
    assert (tmp_path / "run" / "new.txt").read_bytes() == b"second"


def test_without_its_lock_object_a_folder_of_a_store_is_lost(tmp_path):
    folder = f"ram://{tmp_path.name}/run"
    with quick(folder) as first:
        import tensorflow as tf

        tf.io.gfile.remove(f"{folder}/{LOCK_FILE}")
        with pytest.raises(OutputExistsError, match="removed or damaged"):
            first.folder.write("new.txt", b"new")
        # Once lost is lost: a sign of life does not bring it back.
        with quick(folder) as second:
            with pytest.raises(OutputExistsError):
                first.check()
            second.check()
    assert not path_exists(f"{folder}/new.txt")
