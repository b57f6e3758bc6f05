"""Indexes that cannot be are refused before TensorFlow sees them."""

import io
import tracemalloc
import warnings
import zipfile

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.core.framework import types_pb2

from tests.index_writer import entry, write_bundle
from txl_tf.errors import DataDamagedError
from txl_tf.storage.array_files import checked_tensor_bundle, read_array_archive


def checked(prefix):
    return checked_tensor_bundle(prefix, remedy="Restore it.")


def test_an_index_written_by_hand_is_one_to_tensorflow_too(tmp_path):
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    crc = int.from_bytes(b"\0\0\0\0", "little")
    message = entry()
    message.crc32c = crc
    prefix = write_bundle(tmp_path, {"a": message}, values.tobytes())
    assert checked(prefix)["a"].shape == (2, 3)
    reader = tf.compat.v1.train.NewCheckpointReader(prefix)
    assert reader.get_variable_to_shape_map() == {"a": [2, 3]}


def test_what_tensorflow_writes_is_accepted(tmp_path):
    prefix = str(tmp_path / "state")
    tensors = {
        "empty": tf.zeros([2, 0]),
        "half": tf.ones([3], tf.bfloat16),
        "many": tf.range(100_000),
        "text": tf.constant(["", "b" * 200]),
        "whole": tf.constant(7, tf.int64),
    }
    names = sorted(tensors)
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tensors[name] for name in names],
    )
    found = checked(prefix)
    assert {name: (each.dtype, each.shape) for name, each in found.items()} == {
        name: (tensor.dtype.name, tuple(tensor.shape)) for name, tensor in tensors.items()
    }


@pytest.mark.parametrize(
    "message",
    [
        entry((2**40, 3), size=24),
        entry((2**40, 3), size=2**42 * 3),
        entry((-1, 3), size=24),
        entry((2**62, 2**62, 2**62), size=24),
        entry(offset=1),
        entry(offset=-8),
        entry(shard=1),
        entry(shard=-1),
        entry(dtype=types_pb2.DT_VARIANT),
        entry(dtype=types_pb2.DT_RESOURCE),
        entry(dtype=types_pb2.DT_INVALID),
        entry(dtype=types_pb2.DT_FLOAT_REF),
        entry((25,), dtype=types_pb2.DT_STRING),
        entry((19,), dtype=types_pb2.DT_STRING),
    ],
)
def test_an_entry_that_cannot_be_is_refused(message, tmp_path):
    prefix = write_bundle(tmp_path, {"a": message})
    with pytest.raises(DataDamagedError, match=r"index of the tensors|tensors? .*end") as raised:
        checked(prefix)
    data = f"{prefix}.data-00000-of-00001"
    is_of_data = "index of the" not in raised.value.what
    assert raised.value.where == (data if is_of_data else f"{prefix}.index")


def test_many_tensors_cannot_stand_for_the_same_bytes(tmp_path):
    prefix = write_bundle(tmp_path, {"a": entry(), "b": entry((6,))})
    with pytest.raises(DataDamagedError, match="share byte 0"):
        checked(prefix)


def test_parts_of_tensors_and_data_that_is_no_file_are_refused(tmp_path):
    message = entry()
    message.slices.add()
    prefix = write_bundle(tmp_path, {"a": message})
    with pytest.raises(DataDamagedError, match="no shape of its own"):
        checked(prefix)
    for count in (0, 2, 2**31 - 1, -1):
        prefix = write_bundle(tmp_path, {"a": entry()}, num_shards=count)
        with pytest.raises(DataDamagedError):
            checked(prefix)
    prefix = write_bundle(tmp_path, {"a": entry()})
    data = tmp_path / "state.data-00000-of-00001"
    data.unlink()
    data.symlink_to("/dev/zero")
    with pytest.raises(DataDamagedError, match="regular file"):
        checked(prefix)


def test_an_index_with_any_byte_changed_is_refused_or_harmless(tmp_path):
    prefix = write_bundle(tmp_path, {"a": entry(), "b": entry((0,), size=0)})
    path = tmp_path / "state.index"
    content = path.read_bytes()
    for place in range(len(content)):
        for value in (content[place] ^ 1, content[place] ^ 0x80, 0, 0xFF):
            path.write_bytes(content[:place] + bytes([value]) + content[place + 1 :])
            try:
                found = checked(prefix)
            except DataDamagedError:
                continue
            assert sum(each.num_bytes for each in found.values()) <= 24
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(DataDamagedError):
            checked(prefix)


def test_what_follows_the_last_tensor_is_refused(tmp_path):
    prefix = write_bundle(tmp_path, {"a": entry()}, bytes(25))
    with pytest.raises(DataDamagedError, match="has 25 bytes; its tensors end at 24") as raised:
        checked(prefix)
    assert raised.value.where == f"{prefix}.data-00000-of-00001"


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


def zip_of(members, compression=zipfile.ZIP_DEFLATED):
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", compression) as archive:
        warnings.simplefilter("ignore")  # of two members with one name
        for name, content in members:
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


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '<U2000000000', 'fortran_order': False, 'shape': (), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }",
        "(" * 116,
        "{'descr': '<f4'}",
    ],
)
def test_a_header_that_asks_for_what_is_not_there_is_refused(header):
    content = zip_of([("a.npy", array_with(header, bytes(4)))])
    with pytest.raises(ValueError, match=r"array|header|archive"):
        read_array_archive(io.BytesIO(content))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK",
        archive_of()[:-30],
        zip_of([("a.npy", array_with("{}")), ("a.npy", array_with("{}"))]),
        zip_of([("a.txt", b"")]),
        zip_of([("a.npy", b"")]),
        zip_of([("a.npy", b"")], zipfile.ZIP_LZMA),
    ],
)
def test_what_is_no_such_archive_is_refused(content):
    with pytest.raises(ValueError, match=r"array|archive|magic"):
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
