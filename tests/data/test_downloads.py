import fcntl
import hashlib
import os
import random

import pytest

from tests.data.fault_server import Fault, fault_server
from txl_tf.data.downloads import download
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


def test_a_file_is_fetched_once(tmp_path, server):
    seen = []
    folder = tmp_path / "new" / "folder"
    for _ in range(2):
        path = download(
            server.published(), str(folder), progress=lambda *counts: seen.append(counts), **QUICK
        )
    assert content_of(path) == BODY
    assert server.ranges == [None]
    assert seen[-1] == (len(BODY), len(BODY))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert os.listdir(folder) == ["corpus.zip"]


@pytest.mark.parametrize("unknown", [(), ("sha256",), ("sha256", "size_bytes")])
def test_a_cut_connection_resumes_wherever_it_was_cut(tmp_path, server, unknown):
    cuts = [0, 1, 4096, 65_535, 65_536, 100_000, 30_000, 1, 3]
    server.faults = [Fault(cut_after_bytes=cut) for cut in cuts]
    published = server.published(**dict.fromkeys(unknown))
    assert content_of(download(published, str(tmp_path), **QUICK)) == BODY
    starts = [int(text.split("=")[1][:-1]) for text in server.ranges if text]
    assert starts == [1, 4097, 69_632, 135_168, 235_168, 265_168, 265_169, 265_172]


def test_a_later_process_resumes(tmp_path, server):
    server.faults = [Fault(cut_after_bytes=60_000), Fault(status=503)]
    with pytest.raises(StorageError, match=r"answers 503") as caught:
        download(server.published(), str(tmp_path), **QUICK | {"max_attempts": 2})
    assert server.url in str(caught.value)
    assert os.listdir(tmp_path) == ["corpus.zip.partial"]
    assert content_of(download(server.published(), str(tmp_path), **QUICK)) == BODY
    assert server.ranges[-1] == "bytes=60000-"
    assert os.listdir(tmp_path) == ["corpus.zip"]


def test_a_server_without_ranges_sends_everything_again(tmp_path, server):
    server.faults = [Fault(cut_after_bytes=1000), Fault(ignore_range=True)]
    assert content_of(download(server.published(), str(tmp_path), **QUICK)) == BODY


def test_parts_of_different_files_are_never_put_together(tmp_path, server):
    def change():
        server.body = BODY[::-1]

    server.faults = [Fault(cut_after_bytes=150_000), Fault(before=change)]
    published = server.published(sha256=hashlib.sha256(BODY[::-1]).hexdigest())
    with pytest.raises(DataDamagedError, match="SHA-256"):
        download(published, str(tmp_path), **QUICK)
    assert content_of(download(published, str(tmp_path), **QUICK)) == BODY[::-1]


def test_another_file_is_refused(tmp_path, server):
    published = server.published(sha256="0" * 64)
    for server.faults in ([], [Fault(cut_after_bytes=1000)] * 2):
        with pytest.raises(DataDamagedError, match="must have SHA-256 0000") as caught:
            download(published, str(tmp_path), **QUICK)
        assert server.url in str(caught.value)
        assert os.listdir(tmp_path) == []
    assert len(server.ranges) <= 5


@pytest.mark.parametrize("without_length", [False, True])
@pytest.mark.parametrize("difference", [-1, 1])
def test_a_wrong_size_is_refused(tmp_path, server, difference, without_length):
    published = server.published(size_bytes=len(BODY) + difference)
    server.faults = [Fault(without_length=without_length)] * 9
    # A connection without a length may have been cut.
    expected = StorageError if without_length and difference > 0 else DataDamagedError
    with pytest.raises(expected):
        download(published, str(tmp_path), **QUICK)


def test_a_silent_server_is_asked_again(tmp_path, server):
    server.faults = [Fault(silent_seconds=0.5)]
    options = QUICK | {"timeout_seconds": 0.1}
    assert content_of(download(server.published(), str(tmp_path), **options)) == BODY


def test_a_missing_file_is_not_asked_for_again(tmp_path, server):
    server.faults = [Fault(status=404)]
    with pytest.raises(InputMissingError, match="404"):
        download(server.published(), str(tmp_path), **QUICK)
    assert len(server.ranges) == 1


def test_a_download_killed_at_its_end_needs_no_server(tmp_path, server):
    (tmp_path / "corpus.zip.partial").write_bytes(BODY)
    assert content_of(download(server.published(), str(tmp_path), **QUICK)) == BODY
    assert server.ranges == []


def test_two_downloads_of_one_file_keep_apart(tmp_path, server):
    with open(tmp_path / "corpus.zip.partial", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(OutputExistsError, match="Another process"):
            download(server.published(), str(tmp_path), **QUICK)
    assert content_of(download(server.published(), str(tmp_path), **QUICK)) == BODY
