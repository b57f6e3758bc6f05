import json
import math
import os
import socket
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_tf.errors import DataDamagedError
from txl_tf.storage.files import file_sha256, read_file
from txl_tf.storage.untrusted_files import (
    MAX_DEPTH,
    files_below,
    listed_file,
    parse_json,
    read_json_object,
)


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


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
_VALUES = st.recursive(
    _SCALARS,
    lambda each: st.lists(each) | st.dictionaries(st.text(max_size=5), each),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(_VALUES)
def test_every_value_that_json_writes_is_read_back(value):
    assert parse_json(json.dumps(value).encode()) == json.loads(json.dumps(value))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused_by_a_value_error(content):
    try:
        parse_json(content)
    except ValueError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": 1, "b": 2, "a": 3}', "once"),
        ('{"deep": [{"a": 1, "a": 1}]}', "once"),
        ("NaN", "finite"),
        ("[-Infinity]", "finite"),
        ("1e999", "float64"),
        ("9" * 400, "64 bits"),
        ("9" * 5000, "digits"),
        (str(2**64), "64 bits"),
        (str(-(2**63) - 1), "64 bits"),
        ('"\\ud800"', "surrogate"),
        ('{"\\udfff": 1}', "surrogate"),
        ("[" * 100_000 + "]" * 100_000, "deep"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "deep"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "deep"),
        ("[1] 2", "Extra data"),
        ("", "Expecting value"),
    ],
)
def test_what_a_program_cannot_rely_on_is_refused(text, why):
    with pytest.raises(ValueError, match=why):
        parse_json(text)


def test_bytes_that_are_not_utf8_are_refused():
    with pytest.raises(ValueError, match="utf-8"):
        parse_json(b'{"a": "\xff"}')


def test_the_deepest_nesting_that_is_allowed_is_read():
    value = parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)

    for _ in range(MAX_DEPTH - 1):
        (value,) = value
    assert value == []
    assert math.isclose(parse_json("1e308"), 1e308)
