"""The same files, on a local disk and behind TensorFlow's file systems."""

import errno
import hashlib
import os

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


def test_files_are_written_anew_read_listed_and_removed(folder):
    assert is_remote(folder) == ("://" in folder)
    assert list_folder(folder) == []
    make_folder(f"{folder}/deep")
    make_folder(f"{folder}/deep")
    path = f"{folder}/name"
    steps = []
    write_file(path, bytes(9 << 20))
    file_sha256(path, steps.append)
    assert sum(steps) == 9 << 20
    assert len(steps) > 1
    for content in (b"a longer first content", b"second", b""):
        write_file(path, content)
        assert read_file(path) == content
        assert file_bytes(path) == len(content)
        assert file_sha256(path) == hashlib.sha256(content).hexdigest()
    assert list_folder(folder) == ["deep", "name"]
    assert path_exists(path)
    remove_file(path)
    remove_file(path)
    assert not path_exists(path)
    for read in (read_file, file_bytes, file_sha256):
        with pytest.raises(FileNotFoundError):
            read(path)
    remove_folder(folder)
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


def test_a_write_that_fails_keeps_the_old_file(tmp_path, monkeypatch):
    path = str(tmp_path / "name")
    write_file(path, b"old")

    def no_space(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", no_space)
        with pytest.raises(OSError, match="No space left"):
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
def test_errors_of_a_store_are_those_of_a_disk(monkeypatch, error, number):
    def fail(*args):
        raise error(None, None, "the bucket says no\nand more")

    monkeypatch.setattr(tf.io.gfile, "GFile", fail)
    monkeypatch.setattr(tf.io.gfile, "listdir", fail)
    for action in (lambda: read_file("gs://b/x"), lambda: list_folder("gs://b/x")):
        with pytest.raises(OSError, match="the bucket says no") as raised:
            action()
        assert raised.value.errno == number
