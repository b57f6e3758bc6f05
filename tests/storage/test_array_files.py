"""Damaged files of arrays are refused before they take memory."""

import io
import tracemalloc
import zipfile

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_tf.errors import DataDamagedError
from txl_tf.storage.array_files import open_tensor_bundle, read_array_archive

TENSORS = {
    "empty": tf.zeros([2, 0]),
    "half": tf.ones([3], tf.bfloat16),
    "many": tf.range(1000),
    "text": tf.constant(["", "b" * 200]),
    "whole": tf.constant(7, tf.int64),
}


@pytest.fixture
def opened(tmp_path):
    """Opens a checkpoint of `TENSORS`, called `state`."""
    prefix = str(tmp_path / "state")
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=list(TENSORS),
        shape_and_slices=[""] * len(TENSORS),
        tensors=list(TENSORS.values()),
    )
    return lambda: open_tensor_bundle(prefix, remedy="Restore it.")


def test_a_checkpoint_is_opened_with_its_shapes(opened):
    reader, found = opened()
    assert found == {
        name: (tensor.dtype.name, tuple(tensor.shape)) for name, tensor in TENSORS.items()
    }
    np.testing.assert_array_equal(reader.get_tensor("many"), np.arange(1000))


def test_any_damage_of_an_index_is_refused_or_harmless(tmp_path, opened):
    path = tmp_path / "state.index"
    content = path.read_bytes()
    _, expected = opened()
    for place in range(len(content)):
        for value in (content[place] ^ 1, content[place] ^ 0x80, 0, 0xFF):
            path.write_bytes(content[:place] + bytes([value]) + content[place + 1 :])
            try:
                _, found = opened()
            except DataDamagedError:
                continue
            assert found == expected
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(DataDamagedError):
            opened()


def test_data_that_are_missing_cut_or_no_file_are_refused(tmp_path, opened):
    data = tmp_path / "state.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.raises(DataDamagedError, match=r"tensors take .* bytes; the data have 1,000"):
        opened()
    data.unlink()
    with pytest.raises(DataDamagedError):
        opened()
    data.symlink_to("/dev/zero")
    with pytest.raises(DataDamagedError, match="regular file"):
        opened()


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
    found = read_array_archive(io.BytesIO(archive_of(save=save)))
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


def test_a_small_archive_that_unpacks_to_much_is_refused_before_it_is_unpacked():
    content = archive_of({"zeros": np.zeros(64 << 20, np.uint8)}, np.savez_compressed)
    tracemalloc.start()
    with pytest.raises(ValueError, match="unpacks to"):
        read_array_archive(io.BytesIO(content))
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    assert read_array_archive(io.BytesIO(content), max_bytes=65 << 20)["zeros"].size == 64 << 20


def test_what_is_no_archive_or_asks_for_what_is_not_there_is_refused():
    headers = [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '<U2000000000', 'fortran_order': False, 'shape': (), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }",
        "(" * 116,
        "{'descr': '<f4'}",
    ]
    for content in (
        *(zip_of("a.npy", array_with(header, bytes(4))) for header in headers),
        *(b"", b"PK", archive_of()[:-30], zip_of("a.txt", b""), zip_of("a.npy", b"")),
    ):
        with pytest.raises(ValueError, match=r"array|header|archive|magic"):
            read_array_archive(io.BytesIO(content))


@settings(max_examples=150, deadline=None)
@given(place=st.integers(0, len(archive_of()) - 1), new=st.binary(min_size=1, max_size=6))
def test_any_change_is_refused_or_gives_arrays_within_the_limit(place, new):
    content = archive_of()
    changed = content[:place] + new + content[place + len(new) :]
    try:
        found = read_array_archive(io.BytesIO(changed), max_bytes=1 << 20)
    except ValueError:
        return
    assert sum(array.nbytes for array in found.values()) <= 1 << 20
