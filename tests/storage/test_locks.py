"""One writer at a time in a folder; a writer that has lost the lock changes nothing in it."""

import contextlib
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

from tests.source_tree import ROOT
from tests.storage.places import KINDS, place
from txl_tf.errors import OutputExistsError, StorageError
from txl_tf.storage.appended_text import appended_text
from txl_tf.storage.files import list_folder, path_exists, read_file, remove_folder, write_file
from txl_tf.storage.locks import LOCK_FILE, locked_folder
from txl_tf.storage.staging import StagingFolder
from txl_tf.storage.writable_folder import WritableFolder

PROGRAM = """
import sys, time
from txl_tf.storage.locks import locked_folder
with locked_folder(sys.argv[1]):
    print("locked", flush=True)
    time.sleep(1000)
"""


def quick(folder):
    return locked_folder(folder, heartbeat_seconds=0.05, stale_seconds=0.5, settle_seconds=0.0)


@pytest.fixture(params=KINDS)
def folder(request, tmp_path):
    return place(request.param, tmp_path, "run")


def test_a_second_writer_is_refused_and_told_who_the_first_is(folder):
    owner = f"process {os.getpid()} on {socket.gethostname()}"
    with quick(folder) as locked:
        with pytest.raises(OutputExistsError, match=owner) as error:
            quick(folder).__enter__()
        assert len(str(error.value).splitlines()) == 3
        locked.write("kept.txt", b"")
    with pytest.raises(OutputExistsError, match="given back"):
        locked.write("new.txt", b"new")
    with quick(folder):
        assert "kept.txt" in list_folder(folder)
    assert list_folder(folder) == ["kept.txt"]


def test_a_killed_owner_holds_nothing(tmp_path):
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdout.readline() == "locked\n"
        with pytest.raises(OutputExistsError, match=f"process {child.pid} on"):
            locked_folder(tmp_path).__enter__()
        os.kill(child.pid, signal.SIGKILL)
    assert (tmp_path / LOCK_FILE).exists()
    # As where the id of a killed owner has been given to another process.
    (tmp_path / LOCK_FILE).write_text(json.dumps({"host": socket.gethostname(), "pid": 1}))
    with locked_folder(tmp_path):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        locked_folder(tmp_path / "file").__enter__()


@pytest.mark.parametrize("kind", ["lock", "staging folder"])
def test_many_at_once_take_turns(tmp_path, kind):
    """Every owner removes the locked folder; a removed folder cannot be locked."""
    inside, path = threading.Lock(), tmp_path / "run"

    def enter(_):
        owner = locked_folder(path) if kind == "lock" else StagingFolder(str(path), last_file="a")
        with contextlib.suppress(OutputExistsError), owner:
            assert inside.acquire(blocking=False)
            inside.release()
            return True

    for _ in range(10):
        with ThreadPoolExecutor(4) as threads:
            assert any(list(threads.map(enter, range(4))))
    assert kind == "lock" or os.listdir(tmp_path) == []


CHANGES = (
    lambda writable: writable.write("new.txt", b"new"),
    lambda writable: writable.subfolder("made").make(),
    lambda writable: writable.remove_file("old.txt"),
    lambda writable: writable.remove_folder("sub"),
    lambda writable: writable.rename("old.txt", "new.txt"),
    lambda writable: writable.remove_temporaries(),
    lambda writable: appended_text(f"{writable.path}/old.txt", writable).append("new", 1),
    lambda writable: appended_text(f"{writable.path}/old.txt", writable).begin("new"),
)


def fill(folder, content):
    writable = WritableFolder.at(folder)
    writable.write("old.txt", content)
    writable.subfolder("sub").write("file.txt", content)
    writable.write(".left.tmp", content)


def contents(folder):
    names = [name for name in list_folder(folder) if name != "sub" and ".lock" not in name]
    return {name: read_file(f"{folder}/{name}") for name in names}, list_folder(f"{folder}/sub")


@pytest.mark.parametrize("kind", ["local", "ram"])
def test_a_folder_that_was_begun_again_is_not_touched(tmp_path, kind):
    folder = place(kind, tmp_path, "run")
    with quick(folder) as first:
        fill(folder, b"first")
        remove_folder(folder)
        with quick(folder):
            fill(folder, b"second")
            before = contents(folder)
            for change in CHANGES:
                with pytest.raises(OutputExistsError):
                    change(first)
                assert contents(folder) == before
    assert contents(folder) == before


@pytest.fixture
def remote(tmp_path):
    return f"ram://{tmp_path.name}/run"


def forge(folder, heartbeat, **changes):
    """The lock of another owner."""
    owner = {"host": "another-machine", "pid": os.getpid(), "process_start": "x"}
    owner |= {"since": "yesterday", "token": "theirs"}
    write_file(f"{folder}/{LOCK_FILE}.theirs", json.dumps({"heartbeat": heartbeat}).encode())
    write_file(f"{folder}/{LOCK_FILE}", json.dumps(owner | changes).encode())


def test_in_a_store_a_lock_is_kept_until_its_owner_is_gone_or_silent(remote):
    tf.io.gfile.makedirs(remote)
    forge(remote, time.time())
    with pytest.raises(OutputExistsError, match="another-machine, which began yesterday"):
        quick(remote).__enter__()
    for age_seconds, gone in (
        (1.0, {}),
        (0.0, {"host": socket.gethostname(), "pid": 2**22 + 1}),
        (0.0, {"host": socket.gethostname(), "process_start": "earlier"}),
    ):
        forge(remote, time.time() - age_seconds, **gone)
        with quick(remote) as locked:
            locked.check()
    for garbage in (b"", b"[]", b"{", b"{}", b'{"token": "x"}'):
        write_file(f"{remote}/{LOCK_FILE}", garbage)
        with quick(remote) as locked:
            locked.check()


def test_in_a_store_the_owner_writes_heartbeats_and_never_its_lock_again(remote):
    with quick(remote):
        owner = read_file(f"{remote}/{LOCK_FILE}")
        heartbeat = f"{remote}/{LOCK_FILE}.{json.loads(owner)['token']}"
        first, deadline = read_file(heartbeat), time.monotonic() + 10
        while read_file(heartbeat) == first:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert read_file(f"{remote}/{LOCK_FILE}") == owner
    assert list_folder(remote) == []


def test_in_a_store_a_lock_of_another_owner_or_none_is_lost_for_good(remote):
    with quick(remote) as locked:
        forge(remote, time.time())
        with pytest.raises(OutputExistsError, match="another-machine"):
            locked.write("new.txt", b"new")
        time.sleep(0.2)  # several heartbeats later
        with pytest.raises(OutputExistsError, match="another-machine"):
            locked.check()
    assert json.loads(read_file(f"{remote}/{LOCK_FILE}"))["token"] == "theirs"
    forge(remote, 0.0)
    with quick(remote) as first:
        tf.io.gfile.remove(f"{remote}/{LOCK_FILE}")
        with pytest.raises(OutputExistsError, match="gone or damaged"):
            first.write("new.txt", b"new")
        with quick(remote) as second:
            with pytest.raises(OutputExistsError):
                first.check()
            second.check()
    assert not path_exists(f"{remote}/new.txt")


def test_in_a_store_one_of_two_that_come_in_the_same_moment_is_refused(remote):
    barrier, error = threading.Barrier(2), threading.Event()

    def enter(_):
        barrier.wait()
        try:
            with locked_folder(remote, settle_seconds=0.3):
                return error.wait(10)
        except OutputExistsError:
            error.set()

    with ThreadPoolExecutor(2) as threads:
        assert {*threads.map(enter, range(2))} == {True, None}


def test_a_staging_folder_has_one_writer_and_loses_the_files_of_killed_ones(tmp_path):
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
