"""Downloads that are cut, wrong or shared: a file is whole or resumed, never a mixture."""

import fcntl
import os
import random
from pathlib import Path

import pytest

from tests.data.fault_server import Fault, fault_server
from txl_tf.data.sources.downloads import download
from txl_tf.errors import DataDamagedError, InputMissingError, OutputExistsError, StorageError

BODY = random.Random(0).randbytes(300_000)


@pytest.fixture
def server():
    with fault_server(BODY) as running:
        yield running


def test_a_file_is_fetched_once(tmp_path, server):
    values = []
    folder = tmp_path / "new" / "folder"
    for _ in range(2):
        path = download(
            server.published(), str(folder), progress=lambda *counts: values.append(counts)
        )
    assert Path(path).read_bytes() == BODY
    assert server.ranges == [None]
    assert values[-1] == (len(BODY), len(BODY))
    assert [done for done, _ in values] == sorted(done for done, _ in values)
    assert os.listdir(folder) == ["corpus.zip"]


@pytest.mark.parametrize("unknown", [(), ("sha256",), ("sha256", "size_bytes")])
def test_the_next_start_resumes_wherever_the_connection_ended(tmp_path, server, unknown):
    cuts = [0, 1, 4096, 65_535]
    server.faults = [*(Fault(cut_after_bytes=cut) for cut in cuts), Fault(status=503)]
    published = server.published(**dict.fromkeys(unknown))
    for _ in server.faults.copy():
        with pytest.raises(StorageError, match=rf"(connection ended|503)[^\n]*\n.*{server.url}"):
            download(published, str(tmp_path))
        assert os.listdir(tmp_path) == ["corpus.zip.partial"]
    assert Path(download(published, str(tmp_path))).read_bytes() == BODY
    starts = [int(text.split("=")[1][:-1]) for text in server.ranges if text]
    assert starts == [1, 4097, 69_632, 69_632]
    assert os.listdir(tmp_path) == ["corpus.zip"]


def interrupted(server, folder):
    server.faults = [Fault(cut_after_bytes=1000)]
    with pytest.raises(StorageError, match="connection ended after 1000 of 300000"):
        download(server.published(), str(folder))


def test_a_server_without_ranges_sends_everything_again(tmp_path, server):
    interrupted(server, tmp_path)
    server.faults = [Fault(ignore_range=True)]
    assert Path(download(server.published(), str(tmp_path))).read_bytes() == BODY


def test_parts_of_different_files_are_never_put_together(tmp_path, server):
    interrupted(server, tmp_path)
    server.body = BODY[::-1]
    with pytest.raises(DataDamagedError, match=f"must have SHA-256.*\n.*{server.url}"):
        download(server.published(), str(tmp_path))
    assert os.listdir(tmp_path) == []
    assert Path(download(server.published(), str(tmp_path))).read_bytes() == BODY[::-1]


@pytest.mark.parametrize("without_length", [False, True])
@pytest.mark.parametrize("difference", [-1, 1])
def test_a_wrong_size_is_refused(tmp_path, server, difference, without_length):
    published = server.published(size_bytes=len(BODY) + difference)
    server.faults = [Fault(without_length=without_length)]
    # A connection without a length may have been cut.
    expected = StorageError if without_length and difference > 0 else DataDamagedError
    with pytest.raises(expected):
        download(published, str(tmp_path))


def test_a_missing_file_is_an_error_of_the_input(tmp_path, server):
    server.faults = [Fault(status=404)]
    with pytest.raises(InputMissingError, match="404"):
        download(server.published(), str(tmp_path))


def test_a_download_killed_at_its_end_needs_no_server(tmp_path, server):
    (tmp_path / "corpus.zip.partial").write_bytes(BODY)
    assert Path(download(server.published(), str(tmp_path))).read_bytes() == BODY
    assert server.ranges == []


def test_two_downloads_of_one_file_keep_apart(tmp_path, server):
    with open(tmp_path / "corpus.zip.partial", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(OutputExistsError, match="Another process"):
            download(server.published(), str(tmp_path))
    assert Path(download(server.published(), str(tmp_path))).read_bytes() == BODY
