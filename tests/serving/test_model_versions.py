"""Versions that cannot be loaded, whatever they do, beside one that can."""

import collections
import json
import os
import shutil
import time

import pytest
import tensorflow as tf
import urllib3

from tests.serving.servers import MODEL_NAME
from txl_tf.errors import DataDamagedError
from txl_tf.export.export_verification import verify_export
from txl_tf.serving import LoopbackServer
from txl_tf.serving.model_versions import VersionWatcher

_ERRORS = [
    DataDamagedError("damaged"),
    MemoryError(),
    RecursionError("deep"),
    KeyError("name"),
    IndexError("list index out of range"),
    AttributeError("no attribute"),
    AssertionError(),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
    OSError(5, "Input/output error"),
    tf.errors.DataLossError(None, None, "lost"),
    tf.errors.UnimplementedError(None, None, "no such operation"),
]


@pytest.fixture
def folder(versions, tmp_path):
    shutil.copytree(versions / "1", tmp_path / "1")
    return tmp_path


def _wait_until(is_so, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_no_error_of_a_version_ends_the_watching(folder):
    tries = collections.Counter()

    def verify(path):
        number = int(os.path.basename(path))
        tries[number] += 1
        if number > 1:
            raise _ERRORS[number - 2]

    watcher = VersionWatcher(str(folder), verify, poll_seconds=0.02)
    watcher.start()
    numbers = range(2, len(_ERRORS) + 2)
    for number in numbers:
        (folder / str(number)).mkdir()
    # Tried again, so it is still watching.
    _wait_until(lambda: all(tries[number] > 1 for number in numbers))
    assert watcher.current().number == 1
    assert list(watcher.refused) == [*numbers][::-1]
    assert all(watcher.refused.values())
    for number in numbers:
        (folder / str(number)).rmdir()
    _wait_until(lambda: not watcher.refused)
    assert watcher.stop()


def test_a_refused_version_is_tried_ever_more_seldom_until_it_changes(folder):
    tries = []

    def verify(path):
        tries.append(path)
        raise ValueError("no")

    watcher = VersionWatcher(str(folder), verify, poll_seconds=0.1)
    for _ in range(60):
        watcher.look()
        time.sleep(0.02)
    # After 0, 0.1, 0.3 and 0.7 seconds of 1.2 or more.
    assert 3 <= len(tries) <= 6
    count = len(tries)
    (folder / "1" / "more").write_bytes(b"")
    watcher.look()
    assert len(tries) == count + 1


def test_folders_that_are_no_numbers_are_no_versions(folder):
    for name in ("٢", "02", "-2", "2.0", "9" * 200, "²", "1e3"):
        (folder / name).mkdir()
    watcher = VersionWatcher(str(folder), lambda path: None, poll_seconds=1.0)
    watcher.look()
    assert watcher.current().number == 1
    assert watcher.refused == {}


_DAMAGES = ["cut", "empty", "pipe", "device", "device in the list", "no list", "no text"]


def _damage(folder, kind):
    graph = folder / "saved_model.pb"
    if kind == "cut":
        graph.write_bytes(graph.read_bytes()[:1000])
    elif kind == "empty":
        graph.write_bytes(b"")
    elif kind == "pipe":
        graph.unlink()
        os.mkfifo(graph)
    elif kind == "device":
        graph.unlink()
        graph.symlink_to("/dev/zero")
    elif kind == "device in the list":
        sums = (folder / "SHA256SUMS").read_text()
        (folder / "SHA256SUMS").write_text(sums + "0" * 64 + "  ../../../../../dev/zero\n")
    elif kind == "no list":
        (folder / "SHA256SUMS").unlink()
    else:
        (folder / "SHA256SUMS").write_bytes(b"\xff" * 1000)


def test_damaged_versions_are_reported_and_the_one_before_them_answers(folder):
    for number, kind in enumerate(_DAMAGES, start=2):
        shutil.copytree(folder / "1", folder / str(number))
        _damage(folder / str(number), kind)
    with LoopbackServer(
        str(folder), verify_export, model_name=MODEL_NAME, poll_seconds=0.1
    ) as server:
        url = f"http://127.0.0.1:{server.rest_port}/v1/models/{MODEL_NAME}"
        with urllib3.PoolManager(retries=False) as pool:
            first, *others = json.loads(pool.request("GET", url).data)["model_version_status"]
            [of_three] = json.loads(pool.request("GET", f"{url}/versions/3").data).values()
    assert (first["version"], first["state"]) == ("1", "AVAILABLE")
    assert [int(each["version"]) for each in others] == [*range(len(_DAMAGES) + 1, 1, -1)]
    for each in others:
        assert each["state"] == "END"
        assert each["status"]["error_code"] == "FAILED_PRECONDITION"
        assert each["status"]["error_message"]
    assert of_three == [others[-2]]


def test_an_unloadable_graph_with_good_checksums_is_refused(folder):
    shutil.copytree(folder / "1", folder / "3")
    (folder / "3" / "variables" / "variables.index").write_bytes(b"nothing")
    watcher = VersionWatcher(str(folder), lambda path: None, poll_seconds=1.0)
    watcher.look()
    assert watcher.current().number == 1
    assert list(watcher.refused) == [3]
