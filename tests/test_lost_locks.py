"""Whoever has lost the lock of a folder changes nothing in it, nor where a link leads."""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import threading

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


@pytest.mark.parametrize("kind", [*CHANGES, *LOCAL_CHANGES])
def test_not_even_between_the_question_and_the_change(tmp_path, kind):
    """The folder goes after the question was answered: the descriptor leads to the old one."""
    folder = str(tmp_path / "run")
    with quick(folder) as first:
        fill(folder, b"first")
        writable = first.folder
        checks = []

        def check_and_lose():
            first.check()
            if not checks:
                os.rename(folder, tmp_path / "moved")
                fill(folder, b"second")
            checks.append(1)

        writable.check = check_and_lose
        before = contents(folder)
        with contextlib.suppress(OutputExistsError):  # where a second question follows
            {**CHANGES, **LOCAL_CHANGES}[kind](writable)
        assert contents(folder) == (dict.fromkeys(before[0], b"second"), before[1])


def test_nothing_can_be_made_in_a_folder_that_was_removed(tmp_path):
    folder = str(tmp_path / "run")
    with quick(folder) as first:
        writable, real_check = first.folder, first.check

        def check_and_lose():
            real_check()
            shutil.rmtree(folder)

        writable.check = check_and_lose
        with pytest.raises(OutputExistsError, match="removed, moved or replaced"):
            writable.write("new.txt", b"new")
    assert os.listdir(tmp_path) == []


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


def test_a_lock_that_was_written_over_in_place_counts(tmp_path):
    with quick(tmp_path) as lock:
        (tmp_path / LOCK_FILE).write_text(json.dumps(FORGED))
        with pytest.raises(OutputExistsError, match="process 7 on elsewhere"):
            lock.check()


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


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "victim"
    path.mkdir()
    (path / "file.txt").write_bytes(b"of somebody else")
    yield path
    assert [each.name for each in path.iterdir()] == ["file.txt"]
    assert (path / "file.txt").read_bytes() == b"of somebody else"


def test_a_lock_that_is_a_link_is_not_followed(tmp_path, victim):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK_FILE).symlink_to(victim / "file.txt")
    with pytest.raises(OutputExistsError, match="A link"):
        quick(tmp_path / "run").__enter__()
    (tmp_path / "run" / LOCK_FILE).unlink()
    (tmp_path / "run" / LOCK_FILE).symlink_to(victim / "missing.txt")
    with pytest.raises(OutputExistsError, match="A link"):
        quick(tmp_path / "run").__enter__()


def test_a_lock_that_shares_its_file_with_another_name_is_replaced(tmp_path, victim):
    (tmp_path / "run").mkdir()
    os.link(victim / "file.txt", tmp_path / "run" / LOCK_FILE)
    with quick(tmp_path / "run") as lock:
        lock.check()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_lock_that_is_no_file_is_refused_at_once(tmp_path, make):
    make(tmp_path / LOCK_FILE)
    done = []

    def enter():
        try:
            quick(tmp_path).__enter__()
        except Exception as error:
            done.append(error.exit_code)

    thread = threading.Thread(target=enter, daemon=True)
    thread.start()
    thread.join(10)
    assert done and done[0] in (73, 74)


@pytest.mark.parametrize("kind", ["write", "append", "truncate", "new", "below", "remove"])
def test_no_link_in_a_folder_is_followed(tmp_path, victim, kind):
    with quick(tmp_path / "run") as lock:
        writable = lock.folder
        (tmp_path / "run" / "file.txt").symlink_to(victim / "file.txt")
        (tmp_path / "run" / ".file.txt.tmp").symlink_to(victim / "file.txt")
        (tmp_path / "run" / "sub").symlink_to(victim)
        if kind == "write":
            writable.write("file.txt", b"mine")
            assert not (tmp_path / "run" / "file.txt").is_symlink()
        elif kind == "remove":
            writable.remove_file("file.txt")
            writable.remove_folder("sub")
            assert not os.path.lexists(tmp_path / "run" / "sub")
        elif kind == "new":
            with pytest.raises(FileExistsError):
                writable.write_new("file.txt", b"mine")
        else:
            changes = {
                "append": lambda: writable.append("file.txt", b"mine"),
                "truncate": lambda: writable.truncate("file.txt", 0),
                "below": lambda: writable.subfolder("sub").write("file.txt", b"mine"),
            }
            with pytest.raises(OutputExistsError, match="A link"):
                changes[kind]()


def test_small_files_without_a_lock_follow_no_link_either(tmp_path, victim):
    (tmp_path / "file.txt").symlink_to(victim / "file.txt")
    (tmp_path / ".file.txt.tmp").symlink_to(victim / "file.txt")
    write_file(str(tmp_path / "file.txt"), b"mine")
    assert (tmp_path / "file.txt").read_bytes() == b"mine"
    (tmp_path / "link").symlink_to(victim)
    remove_folder(str(tmp_path / "link"))
    assert not os.path.lexists(tmp_path / "link")


def test_a_folder_that_is_a_link_itself_is_usable_until_it_leads_elsewhere(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    with quick(tmp_path / "run") as lock:
        lock.folder.write("new.txt", b"new")
        assert (tmp_path / "disk" / "new.txt").read_bytes() == b"new"
        (tmp_path / "run").unlink()
        (tmp_path / "run").symlink_to(tmp_path / "other")
        with pytest.raises(OutputExistsError):
            lock.folder.write("new.txt", b"newer")
    assert os.listdir(tmp_path / "other") == []
    assert os.listdir(tmp_path / "disk") == ["new.txt"]


@pytest.mark.parametrize("change", ["append", "truncate"])
def test_a_copy_made_of_links_keeps_what_it_was(tmp_path, change):
    with quick(tmp_path / "run") as lock:
        lock.folder.write("ledger.txt", b"one\n")
        os.link(tmp_path / "run" / "ledger.txt", tmp_path / "copy.txt")
        if change == "append":
            lock.folder.append("ledger.txt", b"two\n")
            lock.folder.append("ledger.txt", b"three\n")
        else:
            lock.folder.truncate("ledger.txt", 2)
    expected = {"append": b"one\ntwo\nthree\n", "truncate": b"on"}[change]
    assert (tmp_path / "run" / "ledger.txt").read_bytes() == expected
    assert (tmp_path / "copy.txt").read_bytes() == b"one\n"
