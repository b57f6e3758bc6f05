"""The same files, on a local disk and behind TensorFlow's file systems."""

import errno
import hashlib
import os
from unittest import mock

import pytest
import tensorflow as tf

from tests.storage.places import KINDS, place
from txl_tf.storage.files import (
    file_bytes,
    file_sha256,
    is_remote,
    list_folder,
    make_folder,
    path_exists,
    read_file,
    remove_file,
    remove_folder,
    write_file,
)


@pytest.fixture(params=KINDS)
def folder(request, tmp_path):
    return place(request.param, tmp_path, "folder")


def test_files_are_replaced_read_listed_and_removed(folder):
    assert is_remote(folder) == ("://" in folder)
    assert list_folder(folder) == []
    for _ in "ab":
        make_folder(f"{folder}/deep")
    path, steps = f"{folder}/name", []
    write_file(path, bytes(9 << 20))
    file_sha256(path, steps.append)
    assert sum(steps) == 9 << 20 and len(steps) > 1
    for content in (b"a longer first content", b"second", b""):
        write_file(path, content)
        assert read_file(path) == content
        assert file_bytes(path) == len(content)
        assert file_sha256(path) == hashlib.sha256(content).hexdigest()
    assert list_folder(folder) == ["deep", "name"]
    assert path_exists(path)
    for _ in "ab":
        remove_file(path)
        assert not path_exists(path)
    for read in (read_file, file_bytes, file_sha256):
        with pytest.raises(FileNotFoundError):
            read(path)
    for _ in "ab":
        remove_folder(folder)
        assert list_folder(folder) == []


def test_a_new_folder_is_on_the_disk_before_anything_is_in_it(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr("txl_tf.storage.files.flush_to_disk", flushed.append)
    make_folder(str(tmp_path / "a" / "b"))
    assert flushed == [str(tmp_path), str(tmp_path / "a")]
    make_folder(str(tmp_path / "a" / "b"))
    assert len(flushed) == 2
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        make_folder(str(tmp_path / "file"))


def test_a_write_that_fails_keeps_the_old_file(tmp_path):
    path = str(tmp_path / "name")
    write_file(path, b"old")

    full = mock.Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with mock.patch.object(os, "fsync", full), pytest.raises(OSError, match="No space left"):
        write_file(path, b"new")
    assert read_file(path) == b"old"
    assert os.listdir(tmp_path) == ["name"]


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (tf.errors.ResourceExhaustedError, errno.ENOSPC),
        (tf.errors.PermissionDeniedError, errno.EACCES),
        (tf.errors.UnavailableError, errno.EIO),
    ],
)
def test_errors_of_a_store_become_errors_of_a_disk(monkeypatch, error, number):
    fail = mock.Mock(side_effect=error(None, None, "the bucket says no\nand more"))
    monkeypatch.setattr(tf.io.gfile, "GFile", fail)
    monkeypatch.setattr(tf.io.gfile, "listdir", fail)
    for action in (lambda: read_file("gs://b/x"), lambda: list_folder("gs://b/x")):
        with pytest.raises(OSError, match="the bucket says no") as failure:
            action()
        assert failure.value.errno == number
