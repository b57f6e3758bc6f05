"""One writer at a time in a folder, however the one before ended."""

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

from tests.slow_case import slow_case
from tests.storage.places import KINDS, Turns, place
from txl_tf.errors import OutputExistsError, StorageError
from txl_tf.storage.files import list_folder, path_exists, read_file, write_file
from txl_tf.storage.locks import DirectoryLock
from txl_tf.storage.store_lock import LOCK_FILE

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
import sys, time
from txl_tf.storage.locks import DirectoryLock
with DirectoryLock(sys.argv[1], settle_seconds=0.0):
    print("locked", flush=True)
    time.sleep(1000)
"""


def owner_process(folder):
    """Another process that has the lock."""
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, folder], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert child.stdout.readline() == "locked\n"
    return child


def quick(folder):
    return DirectoryLock(folder, heartbeat_seconds=0.05, stale_seconds=0.5, settle_seconds=0.0)


@pytest.fixture(params=KINDS)
def folder(request, tmp_path):
    return place(request.param, tmp_path, "run")


def test_a_second_writer_is_refused_and_told_who_the_first_is(folder):
    with quick(folder) as lock:
        lock.check()
        begin = time.monotonic()
        with pytest.raises(OutputExistsError) as raised:
            quick(folder).__enter__()
        assert time.monotonic() - begin < 5
        assert raised.value.exit_code == 73
        assert f"process {os.getpid()} on {socket.gethostname()}" in raised.value.what
        assert len(str(raised.value).splitlines()) == 3
        lock.check()
    with quick(folder):
        pass
    assert not path_exists(os.path.join(folder, LOCK_FILE))


@pytest.mark.parametrize("scheme", ["", slow_case("file://")])
def test_a_killed_owner_holds_nothing(tmp_path, scheme):
    folder = f"{scheme}{tmp_path}"
    child = owner_process(folder)
    with child:
        with pytest.raises(OutputExistsError, match=f"process {child.pid} on"):
            DirectoryLock(folder).__enter__()
        os.kill(child.pid, signal.SIGKILL)
    assert (tmp_path / LOCK_FILE).exists()
    # Long before it is stale: a process of this machine is known to be gone.
    with DirectoryLock(folder, settle_seconds=0.0):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()
    assert list(tmp_path.iterdir()) == []


def test_the_name_of_a_living_process_in_a_file_locks_nothing(tmp_path):
    """As where the id of a killed owner has been given to another process."""
    (tmp_path / LOCK_FILE).write_text(json.dumps({"host": socket.gethostname(), "pid": 1}))
    with DirectoryLock(tmp_path):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()


def test_a_folder_that_only_the_lock_was_in_is_removed_if_the_lock_made_it(tmp_path):
    with DirectoryLock(tmp_path / "new"):
        assert (tmp_path / "new").is_dir()
    assert not (tmp_path / "new").exists()
    with DirectoryLock(tmp_path / "new"):
        (tmp_path / "new" / "run.json").write_text("{}")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["run.json"]


def test_many_at_once_take_turns(tmp_path):
    """The file is removed by every owner; nobody may lock one that is gone."""
    turns = Turns(lambda: DirectoryLock(tmp_path / "run"))
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: [turns.try_one() for _ in range(30)], range(4)))
    assert turns.most_at_once == 1
    assert turns.done >= 30


def test_a_folder_that_cannot_be_locked_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError) as raised:
        DirectoryLock(tmp_path / "file").__enter__()
    assert raised.value.exit_code == 74


def forge(folder, **changes):
    """The lock of somebody else."""
    content = {
        "host": "another-machine",
        "pid": os.getpid(),
        "process_start": "x",
        "since": "yesterday",
        "token": "theirs",
        "heartbeat": time.time(),
    }
    write_file(f"{folder}/{LOCK_FILE}", json.dumps(content | changes).encode())


@pytest.fixture
def remote(tmp_path):
    (tmp_path / "run").mkdir()
    return f"file://{tmp_path}/run"


def test_the_lock_of_another_machine_is_kept_until_it_is_stale(remote):
    forge(remote)
    with pytest.raises(OutputExistsError, match="another-machine, which began yesterday"):
        quick(remote).__enter__()
    forge(remote, heartbeat=time.time() - 1.0)
    with quick(remote) as lock:
        lock.check()


def test_a_process_of_this_machine_is_told_from_a_later_one_of_its_id(remote):
    here = socket.gethostname()
    for gone in ({"pid": 2**22 + 1}, {"pid": os.getpid(), "process_start": "earlier"}):
        forge(remote, host=here, **gone)
        with quick(remote):
            pass


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"{}", b'{"heartbeat": "x"}'])
def test_a_lock_that_is_garbage_is_taken_over(remote, text):
    write_file(f"{remote}/{LOCK_FILE}", text)
    with quick(remote) as lock:
        lock.check()


def test_the_owner_gives_signs_of_life(remote):
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


def test_an_owner_that_was_silent_for_too_long_notices_and_leaves_the_other_alone(remote):
    with quick(remote) as lock:
        forge(remote)
        with pytest.raises(OutputExistsError, match="another-machine"):
            lock.check()
        time.sleep(0.2)  # several signs of life later
        with pytest.raises(OutputExistsError, match="another-machine"):
            lock.check()
    assert json.loads(read_file(f"{remote}/{LOCK_FILE}"))["token"] == "theirs"


def test_of_two_that_come_in_the_same_moment_one_is_refused(tmp_path):
    folder = f"ram://{tmp_path.name}/run"
    barrier = threading.Barrier(2)
    outcomes, keep = [], threading.Event()

    def enter():
        barrier.wait()
        try:
            with DirectoryLock(folder, settle_seconds=0.3):
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
