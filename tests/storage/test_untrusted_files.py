import os
import socket
import tracemalloc

import pytest

from txl_tf.errors import DataDamagedError
from txl_tf.storage.files import file_sha256, read_file
from txl_tf.storage.untrusted_files import files_below, listed_file, read_json_object


def special_files(folder):
    """Everything that is not a regular file and that a name can stand for."""
    os.mkfifo(folder / "pipe")
    os.symlink("/dev/zero", folder / "device")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
    return ["pipe", "device", "socket"]


def test_a_file_inside_the_folder_is_found(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a.bin").write_bytes(b"12345")

    path = listed_file(str(tmp_path), "below/a.bin", listed_in="SUMS", num_bytes=5)

    assert read_file(path) == b"12345"


@pytest.mark.parametrize(
    "name",
    [
        *("/etc/passwd", "../x", "a/../../x", "./a", "a//b", "", ".", "..", "a/", "a\\b"),
        *("a\x00b", "a\nb", "gs://bucket/x", None, 5, ["a"], {"a": 1}),
    ],
)
def test_names_that_leave_the_folder_are_refused_with_their_list(tmp_path, name):
    (tmp_path / "a").write_bytes(b"")

    with pytest.raises(DataDamagedError) as caught:
        listed_file(str(tmp_path), name, listed_in="SUMS, line 3")

    assert caught.value.where == "SUMS, line 3"


def test_only_regular_files_count(tmp_path):
    names = special_files(tmp_path)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(b"x")
    folder = tmp_path / "inside"
    folder.mkdir()
    os.symlink(tmp_path / "outside", folder / "linked")
    os.symlink(tmp_path / "outside" / "file", folder / "link")
    for name in names:
        os.symlink(tmp_path / name, folder / name)

    for name in [*names, "link", "linked/file", "linked", "missing", "link/below"]:
        with pytest.raises(DataDamagedError):
            listed_file(str(folder), name, listed_in="SUMS")
    for name in names:
        with pytest.raises(DataDamagedError):
            listed_file(str(tmp_path), name, listed_in="SUMS")


@pytest.mark.parametrize("size", [4, 6, -1, True, 5.0, "5", 2**70])
def test_a_size_must_be_the_one_that_is_listed(tmp_path, size):
    (tmp_path / "a").write_bytes(b"12345")

    with pytest.raises(DataDamagedError, match="bytes"):
        listed_file(str(tmp_path), "a", listed_in="SUMS", num_bytes=size)


def test_reading_never_waits_for_a_pipe_or_reads_a_device(tmp_path):
    for name in special_files(tmp_path):
        path = str(tmp_path / name)
        with pytest.raises((DataDamagedError, OSError)):
            read_file(path)
        with pytest.raises((DataDamagedError, OSError)):
            file_sha256(path)


@pytest.mark.parametrize("content", [b"[1]", b"3", b"", b"{", b'{"a": 1, "a": 2}', b"\xff"])
def test_anything_but_one_json_object_is_damage(tmp_path, content):
    path = tmp_path / "manifest.json"
    path.write_bytes(content)

    with pytest.raises(DataDamagedError) as caught:
        read_json_object(str(path), remedy="Make it again.")

    assert caught.value.where == str(path)
    assert caught.value.remedy == "Make it again."


def test_a_description_that_is_too_long_is_not_read(tmp_path):
    path = tmp_path / "manifest.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole, which takes no room

    with pytest.raises(DataDamagedError, match="more than"):
        read_json_object(str(path))


def test_an_object_is_read_and_a_missing_file_is_no_damage(tmp_path):
    path = tmp_path / "manifest.json"
    with pytest.raises(FileNotFoundError):
        read_json_object(str(path))
    path.write_text('{"a": [1, 2.5, null]}')

    assert read_json_object(str(path)) == {"a": [1, 2.5, None]}


def test_a_description_of_very_many_values_is_refused_before_it_is_parsed(tmp_path):
    path = tmp_path / "description.json"
    path.write_text('{"a": [' + "[]," * (5 << 20) + "0]}")
    tracemalloc.start()
    with pytest.raises(DataDamagedError, match="at most"):
        read_json_object(str(path))
    assert tracemalloc.get_traced_memory()[1] < 100 << 20
    tracemalloc.stop()


def test_only_files_and_folders_are_below_a_folder(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_text("")
    (tmp_path / "other").write_text("")
    assert files_below(str(tmp_path)) == ["a/b/file", "other"]
    for make in (
        lambda path: path.symlink_to(tmp_path),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: os.mkfifo(path),
    ):
        path = tmp_path / "a" / "wrong"
        make(path)
        with pytest.raises(DataDamagedError, match="Only files and folders") as raised:
            files_below(str(tmp_path))
        assert raised.value.where == str(path)
        path.unlink()
