"""One writer at a time in a folder; a writer that has lost the lock changes nothing in it."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tensorflow as tf

from tests.storage.places import KINDS, place
from txl_tf.errors import OutputExistsError, StorageError
from txl_tf.storage.files import list_folder, path_exists, read_file, remove_folder, write_file
from txl_tf.storage.locks import LOCK_FILE, DirectoryLock, WritableFolder
from txl_tf.storage.staging import StagingFolder

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys, time
from txl_tf.storage.locks import LOCK_FILE, DirectoryLock
with DirectoryLock(sys.argv[1], settle_seconds=0.0):
    print("locked", flush=True)
    time.sleep(1000)
"""


def quick(folder):
    return DirectoryLock(folder, heartbeat_seconds=0.05, stale_seconds=0.5, settle_seconds=0.0)


@pytest.fixture(params=KINDS)
def folder(request, tmp_path):
    return place(request.param, tmp_path, "run")


def test_a_second_writer_is_refused_and_told_who_the_first_is(folder):
    with quick(folder) as lock:
        begin = time.monotonic()
        with pytest.raises(OutputExistsError) as raised:
            quick(folder).__enter__()
        assert time.monotonic() - begin < 5
        assert raised.value.exit_code == 73
        assert f"process {os.getpid()} on {socket.gethostname()}" in raised.value.what
        assert len(str(raised.value).splitlines()) == 3
        lock.check()
        lock.folder.write("kept.txt", b"")
    with pytest.raises(OutputExistsError, match="given back"):
        lock.folder.write("new.txt", b"new")
    with quick(folder):
        pass
    assert list_folder(folder) == ["kept.txt"]


def test_a_killed_owner_holds_nothing(tmp_path):
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdout.readline() == "locked\n"
        with pytest.raises(OutputExistsError, match=f"process {child.pid} on"):
            DirectoryLock(tmp_path).__enter__()
        os.kill(child.pid, signal.SIGKILL)
    assert (tmp_path / LOCK_FILE).exists()
    # As where the id of a killed owner has been given to another process.
    (tmp_path / LOCK_FILE).write_text(json.dumps({"host": socket.gethostname(), "pid": 1}))
    with DirectoryLock(tmp_path):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()
    assert list(tmp_path.iterdir()) == []
    with DirectoryLock(tmp_path / "new"):
        assert (tmp_path / "new").is_dir()
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        DirectoryLock(tmp_path / "file").__enter__()


@pytest.mark.parametrize("kind", ["lock", "staging folder"])
def test_many_at_once_take_turns(tmp_path, kind):
    """What is locked is removed by every owner; nobody may lock what is gone."""
    inside, most_at_once, num_done = [], 0, 0

    def enter(_):
        nonlocal most_at_once, num_done
        path = tmp_path / "run"
        try:
            with DirectoryLock(path) if kind == "lock" else StagingFolder(str(path), last_file="a"):
                inside.append(1)
                most_at_once = max(most_at_once, len(inside))
                inside.pop()
                num_done += 1
        except OutputExistsError:
            pass

    for _ in range(10):
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(enter, range(4)))
    assert most_at_once == 1
    assert num_done >= 10
    if kind == "staging folder":
        assert os.listdir(tmp_path) == []


CHANGES = {
    "write": lambda writable: writable.write("new.txt", b"new"),
    "write below": lambda writable: writable.subfolder("below").write("new.txt", b"new"),
    "make": lambda writable: writable.subfolder("made").make(),
    "remove a file": lambda writable: writable.remove_file("old.txt"),
    "remove a folder": lambda writable: writable.remove_folder("sub"),
    "rename": lambda writable: writable.rename("old.txt", "new.txt"),
    "remove leftovers": lambda writable: writable.remove_temporaries(),
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


@pytest.mark.parametrize("kind", ["local", "ram"])
def test_a_folder_that_was_begun_anew_is_not_touched(tmp_path, kind):
    folder = place(kind, tmp_path, "run")
    with quick(folder) as first:
        fill(folder, b"first")
        writable = first.folder
        remove_folder(folder)
        with quick(folder):
            fill(folder, b"second")
            before = contents(folder)
            for change in {**CHANGES, **(LOCAL_CHANGES if kind == "local" else {})}.values():
                with pytest.raises(OutputExistsError) as raised:
                    change(writable)
                assert raised.value.exit_code == 73
                assert len(str(raised.value).splitlines()) == 3
                assert contents(folder) == before
    assert contents(folder) == before


def test_without_its_lock_file_a_local_folder_stays_locked_and_is_named_again(tmp_path):
    with quick(tmp_path) as lock:
        (tmp_path / LOCK_FILE).unlink()
        with pytest.raises(OutputExistsError):
            quick(tmp_path).__enter__()
        lock.check()
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
        with quick(tmp_path / "run"), pytest.raises(OutputExistsError):
            first.folder.write("new.txt", b"new")
    assert not (tmp_path / "run" / "new.txt").exists()


@pytest.fixture
def remote(tmp_path):
    return f"ram://{tmp_path.name}/run"


def forge(folder, **changes):
    """The lock of another owner."""
    owner = {"host": "another-machine", "pid": os.getpid(), "process_start": "x"}
    owner |= {"since": "yesterday", "token": "theirs", "heartbeat": time.time()}
    write_file(f"{folder}/{LOCK_FILE}", json.dumps(owner | changes).encode())


def test_in_a_store_a_lock_is_kept_until_its_owner_is_gone_or_silent(remote):
    tf.io.gfile.makedirs(remote)
    forge(remote)
    with pytest.raises(OutputExistsError, match="another-machine, which began yesterday"):
        quick(remote).__enter__()
    for gone in (
        {"heartbeat": time.time() - 1.0},
        {"host": socket.gethostname(), "pid": 2**22 + 1},
        {"host": socket.gethostname(), "process_start": "earlier"},
    ):
        forge(remote, **gone)
        with quick(remote) as lock:
            lock.check()
    for garbage in (b"", b"[]", b"{", b"{}", b'{"heartbeat": "x"}'):
        write_file(f"{remote}/{LOCK_FILE}", garbage)
        with quick(remote) as lock:
            lock.check()


def test_in_a_store_the_owner_gives_signs_of_life(remote):
    with quick(remote):
        owner = json.loads(read_file(f"{remote}/{LOCK_FILE}"))
        signs = f"{remote}/{LOCK_FILE}.{owner['token']}"
        deadline = time.monotonic() + 10
        while json.loads(read_file(signs))["heartbeat"] <= owner["heartbeat"] + 0.1:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        # They alone are new: what names the owner could be the successor's by now.
        assert json.loads(read_file(f"{remote}/{LOCK_FILE}")) == owner
    assert list_folder(remote) == []


def test_in_a_store_a_lock_of_another_owner_or_none_is_lost_for_good(remote):
    with quick(remote) as lock:
        forge(remote)
        with pytest.raises(OutputExistsError, match="another-machine"):
            lock.folder.write("new.txt", b"new")
        time.sleep(0.2)  # several signs of life later
        with pytest.raises(OutputExistsError, match="another-machine"):
            lock.check()
    assert json.loads(read_file(f"{remote}/{LOCK_FILE}"))["token"] == "theirs"
    forge(remote, heartbeat=0.0)
    with quick(remote) as first:
        tf.io.gfile.remove(f"{remote}/{LOCK_FILE}")
        with pytest.raises(OutputExistsError, match="removed or damaged"):
            first.folder.write("new.txt", b"new")
        with quick(remote) as second:
            with pytest.raises(OutputExistsError):
                first.check()
            second.check()
    assert not path_exists(f"{remote}/new.txt")


def test_in_a_store_one_of_two_that_come_in_the_same_moment_is_refused(remote):
    barrier = threading.Barrier(2)
    outcomes, keep = [], threading.Event()

    def enter():
        barrier.wait()
        try:
            with DirectoryLock(remote, settle_seconds=0.3):
                outcomes.append("locked")
                keep.wait(10)
        except OutputExistsError:
            outcomes.append("refused")
            keep.set()

    threads = [threading.Thread(target=enter) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["locked", "refused"]


def test_a_staging_folder_has_one_writer_and_what_killed_ones_left_is_removed(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / ".out.preparing-1").mkdir()
    (tmp_path / ".out.lock").write_text("")
    (tmp_path / ".out.preparing-1" / "link").symlink_to(tmp_path / "kept")
    # A trainer that has locked the folder above is not waited for.
    with quick(tmp_path), StagingFolder(str(tmp_path / "out"), last_file="a") as staging:
        with pytest.raises(OutputExistsError, match="Another process"):
            StagingFolder(str(tmp_path / "out"), last_file="a").__enter__()
        (Path(staging.path) / "a").write_text("a")
        own = {".out.lock", os.path.basename(staging.path)}
        assert set(os.listdir(tmp_path)) == {LOCK_FILE, "kept", *own}
        staging.publish()
    assert sorted(os.listdir(tmp_path)) == ["kept", "out"]
