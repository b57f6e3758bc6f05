import fcntl
import os
import random
import subprocess
import sys

import pytest

from tests.data.fault_server import Fault, fault_server
from txl_tf.data.downloads import download
from txl_tf.data.partial_download import PublishedFile
from txl_tf.errors import DataDamagedError, InputMissingError, OutputExistsError, StorageError

BODY = random.Random(0).randbytes(300_000)
QUICK = {"pause_seconds": 0.001, "timeout_seconds": 5.0, "max_attempts": 3}


@pytest.fixture
def server():
    with fault_server(BODY) as running:
        yield running


def content_of(path):
    with open(path, "rb") as file:
        return file.read()


def files_of(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_a_file_is_fetched_once(tmp_path, server):
    seen = []
    folder = str(tmp_path / "new" / "folder")
    for _ in range(2):
        path = download(
            server.published(), folder, progress=lambda *counts: seen.append(counts), **QUICK
        )
    assert content_of(path) == BODY
    assert server.ranges == [None]
    assert seen[-1] == (len(BODY), len(BODY))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert files_of(tmp_path / "new" / "folder") == ["corpus.zip"]


@pytest.mark.parametrize("without_sha256", [False, True])
def test_a_cut_connection_goes_on_wherever_it_was_cut(tmp_path, server, without_sha256):
    cuts = [0, 1, 4096, 65_535, 65_536, 100_000, 30_000, 1, 3]
    server.faults = [Fault(cut_after_bytes=cut) for cut in cuts]
    published = server.published(**{"sha256": None} if without_sha256 else {})
    path = download(published, str(tmp_path), **QUICK)
    assert content_of(path) == BODY
    starts = [int(text.split("=")[1][:-1]) for text in server.ranges if text]
    assert starts == [1, 4097, 69_632, 135_168, 235_168, 265_168, 265_169, 265_172]


def test_a_later_process_goes_on_after_every_cut(tmp_path, server):
    for point in range(1, len(BODY), 29_989):
        folder = tmp_path / str(point)
        server.faults = [Fault(cut_after_bytes=point), Fault(status=503)]
        options = QUICK | {"max_attempts": 2}
        with pytest.raises(StorageError, match=r"503"):
            download(server.published(), str(folder), **options)
        assert files_of(folder) == ["corpus.zip.partial", "corpus.zip.partial.json"]
        server.ranges.clear()
        path = download(server.published(), str(folder), **QUICK)
        assert server.ranges == [f"bytes={point}-"]
        assert content_of(path) == BODY
        assert files_of(folder) == ["corpus.zip"]


def test_a_server_without_ranges_sends_everything_again(tmp_path, server):
    server.faults = [Fault(cut_after_bytes=1000), Fault(ignore_range=True)]
    assert content_of(download(server.published(), str(tmp_path), **QUICK)) == BODY


def change_body(server, *, tag):
    def change():
        server.body = BODY[::-1]
        server.tag = tag

    return change


def test_a_file_that_changes_in_between_is_fetched_from_its_beginning(tmp_path, server):
    published = server.published(sha256=None)
    server.faults = [Fault(cut_after_bytes=1000), Fault(before=change_body(server, tag='"two"'))]
    assert content_of(download(published, str(tmp_path), **QUICK)) == BODY[::-1]


def test_parts_of_different_files_are_never_put_together(tmp_path, server):
    """The server keeps the tag of a changed file, or goes on where it must not."""
    server.body = BODY[::-1]
    published = server.published()
    server.body = BODY
    for change in (change_body(server, tag='"one"'), change_body(server, tag='"two"')):
        server.body, server.tag = BODY, '"one"'
        server.faults = [
            Fault(cut_after_bytes=1000),
            Fault(before=change, ignore_condition=True),
        ]
        folder = tmp_path / str(id(change))
        assert content_of(download(published, str(folder), **QUICK)) == BODY[::-1]


def test_another_file_is_refused_and_set_aside(tmp_path, server):
    published = server.published(sha256="0" * 64)
    with pytest.raises(DataDamagedError, match="must have SHA-256 0000") as caught:
        download(published, str(tmp_path), **QUICK)
    assert server.url in str(caught.value)
    assert files_of(tmp_path) == ["corpus.zip.damaged"]
    server.faults = [Fault(cut_after_bytes=1000)] * 2
    server.ranges.clear()
    with pytest.raises(DataDamagedError, match="must have SHA-256 0000"):
        download(published, str(tmp_path), **QUICK)
    assert files_of(tmp_path) == ["corpus.zip.damaged"]
    assert len(server.ranges) <= 5


@pytest.mark.parametrize("difference", [-1, 1])
def test_a_wrong_size_is_refused_before_anything_is_fetched(tmp_path, server, difference):
    published = server.published(size_bytes=len(BODY) + difference)
    with pytest.raises(DataDamagedError, match=f"but the server has {len(BODY)}"):
        download(published, str(tmp_path), **QUICK)
    assert files_of(tmp_path) == []


def test_without_a_length_the_size_that_is_known_decides(tmp_path, server):
    server.faults = [Fault(without_length=True, cut_after_bytes=1000), Fault(without_length=True)]
    assert content_of(download(server.published(), str(tmp_path), **QUICK)) == BODY
    server.body = BODY + b"more"
    published = server.published(size_bytes=len(BODY))
    server.faults = [Fault(without_length=True)] * 3
    with pytest.raises(StorageError, match="sends more than"):
        download(published, str(tmp_path / "other"), **QUICK)
    assert files_of(tmp_path / "other") == []


def test_a_silent_server_is_asked_again(tmp_path, server):
    server.faults = [Fault(silent_seconds=0.5)]
    options = QUICK | {"timeout_seconds": 0.1}
    assert content_of(download(server.published(), str(tmp_path), **options)) == BODY


def test_a_server_that_stays_in_trouble_is_named(tmp_path, server):
    server.faults = [Fault(status=502)] * 10
    with pytest.raises(StorageError, match="answers 502") as caught:
        download(server.published(), str(tmp_path), **QUICK)
    assert server.url in str(caught.value)
    assert len(server.ranges) == QUICK["max_attempts"]


@pytest.mark.parametrize("status", [403, 404])
def test_a_file_that_is_not_there_is_not_asked_for_again(tmp_path, server, status):
    server.faults = [Fault(status=status)]
    with pytest.raises(InputMissingError, match=str(status)) as caught:
        download(server.published(), str(tmp_path), **QUICK)
    assert caught.value.exit_code == 66
    assert len(server.ranges) == 1


def test_the_next_address_is_tried(tmp_path, server):
    server.faults = [Fault(status=404)]
    published = server.published(urls=(server.url + "?first", server.url))
    assert content_of(download(published, str(tmp_path), **QUICK)) == BODY


def test_a_damaged_file_in_the_folder_is_set_aside_and_fetched_again(tmp_path, server):
    (tmp_path / "corpus.zip").write_bytes(BODY[:-1])
    assert content_of(download(server.published(), str(tmp_path), **QUICK)) == BODY
    assert files_of(tmp_path) == ["corpus.zip", "corpus.zip.damaged"]


def test_a_download_that_was_killed_at_its_end_needs_no_server(tmp_path, server):
    (tmp_path / "corpus.zip.partial").write_bytes(BODY)
    assert content_of(download(server.published(), str(tmp_path), **QUICK)) == BODY
    assert server.ranges == []
    server.faults = [Fault(cut_after_bytes=1000), Fault(status=404)]
    unknown = server.published(size_bytes=None, sha256=None)
    folder = tmp_path / "unknown"
    with pytest.raises(InputMissingError):
        download(unknown, str(folder), **QUICK)
    (folder / "corpus.zip.partial").write_bytes(BODY)
    assert content_of(download(unknown, str(folder), **QUICK)) == BODY


def test_a_damaged_note_of_the_version_starts_again(tmp_path, server):
    for note in (b"", b"[1]", b'{"url": "other", "version": "x"}', b"\xff"):
        (tmp_path / "corpus.zip.partial").write_bytes(b"wrong beginning")
        (tmp_path / "corpus.zip.partial.json").write_bytes(note)
        path = download(server.published(), str(tmp_path), **QUICK)
        assert content_of(path) == BODY
        os.remove(path)


def test_two_downloads_of_one_file_keep_apart(tmp_path, server):
    with open(tmp_path / "corpus.zip.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(OutputExistsError, match="Another process"):
            download(server.published(), str(tmp_path), **QUICK)
    assert content_of(download(server.published(), str(tmp_path), **QUICK)) == BODY


def test_a_full_disk_is_found_before_it_is_full(tmp_path, server, monkeypatch):
    usage = type("usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    with pytest.raises(StorageError, match="needs 300000 bytes more, and 1000 are free"):
        download(server.published(), str(tmp_path), **QUICK)


def test_an_error_of_the_disk_is_none_of_the_connection(tmp_path, server, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("txl_tf.data.partial_download.PartialFile.open_to_append", full)
    with pytest.raises(StorageError, match="No space left"):
        download(server.published(), str(tmp_path), **QUICK)
    assert server.ranges == [None]


def test_only_the_network_is_asked_and_no_proxy_of_the_environment(tmp_path, server, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert content_of(download(server.published(), str(tmp_path), **QUICK)) == BODY
    proxies = {"http": "http://127.0.0.1:9"}
    with pytest.raises(StorageError, match="refused"):
        download(server.published(), str(tmp_path / "other"), proxies=proxies, **QUICK)


KILLED = """
import sys
from txl_tf.data.downloads import download
from txl_tf.data.partial_download import PartialFile, PublishedFile
from txl_tf.data.partial_download import PublishedFile
import os, signal
file = PublishedFile(name="corpus.zip", urls=(sys.argv[1],), size_bytes=int(sys.argv[2]))
def progress(done, total):
    if done > 100_000:
        os.kill(os.getpid(), signal.SIGKILL)
download(file, sys.argv[3], progress=progress)
"""


def test_a_killed_download_goes_on(tmp_path, server):
    command = [sys.executable, "-c", KILLED, server.url, str(len(BODY)), str(tmp_path)]
    for _ in range(2):
        assert subprocess.run(command, check=False).returncode == -9
    assert "corpus.zip" not in files_of(tmp_path)
    assert content_of(download(server.published(), str(tmp_path), **QUICK)) == BODY
    assert server.ranges[-1] and server.ranges[-1] != "bytes=0-"


@pytest.mark.parametrize(
    "values",
    [
        {"name": "../corpus.zip"},
        {"urls": ("file:///etc/passwd",)},
        {"sha256": "abc"},
    ],
)
def test_what_is_no_published_file_is_refused(values):
    with pytest.raises(ValueError, match="Received: "):
        PublishedFile(**{"name": "corpus.zip", "urls": ("https://example.org/a",)} | values)
