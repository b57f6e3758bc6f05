"""Strict reading of JSON, of the files that a list names, and of files of arrays."""

import io
import os
import zipfile

import numpy as np
import pytest

from txl_tf.errors import DataDamagedError
from txl_tf.storage import array_archives, strict_json
from txl_tf.storage.array_archives import read_array_archive
from txl_tf.storage.files import file_sha256, read_file
from txl_tf.storage.listed_files import files_below, listed_file
from txl_tf.storage.strict_json import MAX_DEPTH, parse_json, read_json_object


def test_a_listed_file_is_found_by_a_name_inside_the_folder_and_its_size(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a.bin").write_bytes(b"12345")
    path = listed_file(str(tmp_path), "below/a.bin", listed_in="SUMS", num_bytes=5)
    assert read_file(path) == b"12345"
    for size in (4, 6, -1, True, 5.0, "5", 2**70):
        with pytest.raises(DataDamagedError, match="bytes"):
            listed_file(str(tmp_path), "below/a.bin", listed_in="SUMS", num_bytes=size)
    for name in (
        "/absolute",
        "../x",
        "below/../../x",
        "./below",
        "below//a.bin",
        "",
        "..",
        "a\\b",
        "a\x00b",
        "a\nb",
        "gs://bucket/x",
        None,
        5,
        ["a"],
        "missing",
    ):
        with pytest.raises(DataDamagedError) as error:
            listed_file(str(tmp_path), name, listed_in="SUMS, line 3")
        assert error.value.where in ("SUMS, line 3", str(tmp_path / "missing"))


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, lambda path: path.symlink_to("/dev/null"), lambda path: path.symlink_to("..")],
    ids=["pipe", "device", "folder"],
)
def test_pipes_devices_and_links_are_neither_waited_for_nor_read_nor_followed(tmp_path, make):
    folder = tmp_path / "inside"
    folder.mkdir()
    (folder / "file").write_text("")
    assert files_below(str(tmp_path)) == ["inside/file"]
    path = folder / "wrong"
    make(path)
    for read in (read_file, file_sha256):
        with pytest.raises((DataDamagedError, OSError)):
            read(str(path))
    for name in ("wrong", "wrong/inside/file"):
        with pytest.raises(DataDamagedError):
            listed_file(str(folder), name, listed_in="SUMS")
    with pytest.raises(DataDamagedError, match="a file or a folder, not a link") as error:
        files_below(str(tmp_path))
    assert error.value.where == str(path)


def test_anything_but_one_short_json_object_is_damage(tmp_path, monkeypatch):
    path = tmp_path / "manifest.json"
    with pytest.raises(FileNotFoundError):
        read_json_object(str(path))
    for content in (b"[1]", b"3", b"", b"{", b'{"a": 1, "a": 2}', b'{"a": "\xff"}'):
        path.write_bytes(content)
        with pytest.raises(DataDamagedError, match=f"{path}\nMake it again."):
            read_json_object(str(path), remedy="Make it again.")
    path.write_text('{"a": [1, 2.5, null]}')
    assert read_json_object(str(path), max_bytes=21) == {"a": [1, 2.5, None]}
    with pytest.raises(DataDamagedError, match="larger than"):
        read_json_object(str(path), max_bytes=20)
    monkeypatch.setattr(strict_json, "MAX_VALUES", 3)
    with pytest.raises(DataDamagedError, match="at most"):
        read_json_object(str(path))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": 1, "b": 2, "a": 3}', "twice"),
        ("NaN", "finite"),
        ("1e999", "float64"),
        ("9" * 400, "64 bits"),
        ('"\\ud800"', "surrogate"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "deep"),
        ("[1] 2", "Extra data"),
        ("", "Expecting value"),
    ],
)
def test_json_that_a_program_cannot_rely_on_is_refused(text, why):
    with pytest.raises(ValueError, match=why):
        parse_json(text)


ARRAYS = {
    "bytes": np.arange(200, dtype=np.uint8),
    "empty": np.zeros((2, 0), np.float32),
    "fortran": np.asfortranarray(np.arange(12, dtype=np.float64).reshape(3, 4)),
    "text": np.array("some text"),
}


def archive_of(arrays=ARRAYS, save=np.savez):
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def zip_of(name, content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, content)
    return file.getvalue()


def array_with(header, content=b""):
    file = io.BytesIO()
    text = header.encode().ljust(117) + b"\n"
    file.write(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + content)
    return file.getvalue()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_read_as_they_were_written(save):
    arrays = read_array_archive(io.BytesIO(archive_of(save=save)))
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array, strict=True)


def test_an_archive_that_unpacks_to_more_than_the_limit_is_refused(monkeypatch):
    content = archive_of({"zeros": np.zeros(2000, np.uint8)}, np.savez_compressed)
    assert read_array_archive(io.BytesIO(content))["zeros"].size == 2000
    monkeypatch.setattr(array_archives, "_ALWAYS_ALLOWED_BYTES", 0)
    monkeypatch.setattr(array_archives, "_MAX_RATIO", 2)
    with pytest.raises(ValueError, match="unpacks to"):
        read_array_archive(io.BytesIO(content))


def test_an_archive_whose_arrays_are_not_as_their_headers_is_refused():
    headers = [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '<U2', 'fortran_order': False, 'shape': (), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }",
        "(",
        "{'descr': '<f4'}",
    ]
    for content in (
        *(zip_of("a.npy", array_with(header, bytes(4))) for header in headers),
        b"",
        b"PK",
        archive_of()[:-30],
        zip_of("a.txt", b""),
        zip_of("a.npy", b""),
    ):
        with pytest.raises(ValueError, match=r"array|header|archive|magic"):
            read_array_archive(io.BytesIO(content))
