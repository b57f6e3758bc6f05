"""Checks of files of arrays: the index of a TensorFlow checkpoint, and NumPy archives.

TensorFlow takes the memory that an index asks for, and ends the process where
an index is impossible. So the index, which is a sorted table of protocol
buffers, is read here first: every tensor lies inside its data file, has the
size of its shape, and shares no byte with another one.

A small NumPy archive (`.npz`) can unpack to any size, and the header of an array
asks for memory before there is data. So sizes are added up before unpacking.
"""

import dataclasses
import itertools
import math
import os
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from txl_tf.errors import DataDamagedError
from txl_tf.storage.files import file_bytes, first_line, is_remote, open_regular_file, read_file
from txl_tf.storage.untrusted_files import listed_file

# The index of a model with a hundred thousand variables has less.
_MAX_INDEX_BYTES = 16 << 20
_MAX_KEY_BYTES = 64 << 20
_MAX_DATA_FILES = 10_000
_FOOTER_BYTES = 48
_TRAILER_BYTES = 5
_MAGIC = 0xDB4775248B80FB57
_STRING = "string"


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """One tensor of a checkpoint, as its index describes it.

    Args:
        dtype: str. Name of the type, such as `"float32"`.
        shape: tuple of int.
        data_file: str. Path of the file that holds it.
        offset: int. Its first byte there.
        num_bytes: int. How many bytes it has there.
    """

    dtype: str
    shape: tuple[int, ...]
    data_file: str
    offset: int
    num_bytes: int


def checked_tensor_bundle(prefix: str, *, remedy: str) -> dict[str, StoredTensor]:
    """Reads the index of a checkpoint and compares it with the data files.

    Args:
        prefix: str. Path that the names of the files begin with.
        remedy: str. What to do where it is damaged.

    Raises:
        DataDamagedError: If the index cannot be that of these files.
        OSError: If a file cannot be read.
    """
    folder, name = os.path.split(prefix)
    index = f"{name}.index"
    path = listed_file(folder, index, listed_in=f"{prefix}.*", remedy=remedy)
    content = read_file(path, max_bytes=_MAX_INDEX_BYTES)
    try:
        entries = dict(_table(content))
        files = _data_files(folder, name, entries.pop(b"", b""))
        tensors = {key.decode(): _tensor(key, entries[key], files, remedy) for key in entries}
        _check_places(tensors)
        _check_ends(tensors, files, remedy)
        for key, tensor in tensors.items():
            if tensor.dtype == _STRING:
                _check_strings(key, tensor)
    except (ValueError, struct.error) as error:
        what = f"The index of the tensors is damaged: {first_line(error)}"
        raise DataDamagedError(what, where=path, remedy=remedy) from error
    return tensors


def _table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Returns the entries of a sorted table, see `tensorflow/core/lib/io/format.h`."""
    footer = content[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or struct.unpack("<Q", footer[-8:])[0] != _MAGIC:
        raise ValueError("it does not end as a table does")
    place = 0
    handles = []
    for _ in range(4):
        number, place = _number(footer, place)
        handles.append(number)
    before, key_bytes = None, 0
    for _, handle in _block(content, *handles[2:]):
        start, place = _number(handle, 0)
        size, _ = _number(handle, place)
        for key, value in _block(content, start, size):
            if before is not None and key <= before:
                raise ValueError("its names are not in order")
            before = key
            key_bytes += len(key)
            if key_bytes > _MAX_KEY_BYTES:
                raise ValueError("its names are too long")
            yield key, value


def _block(content: bytes, start: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    end = start + size
    if size < 4 or end + _TRAILER_BYTES > len(content):
        raise ValueError("a block is not in the file")
    if content[end]:
        raise ValueError("a block is compressed")
    block = content[start:end]
    num_restarts = struct.unpack("<I", block[-4:])[0]
    limit = len(block) - 4 - 4 * num_restarts
    if limit < 0:
        raise ValueError("a block is too short")
    place, key = 0, b""
    while place < limit:
        shared, place = _number(block, place)
        added, place = _number(block, place)
        length, place = _number(block, place)
        if shared > len(key) or place + added + length > limit:
            raise ValueError("an entry is not in its block")
        key = key[:shared] + block[place : place + added]
        place += added
        yield key, block[place : place + length]
        place += length


def _number(content: bytes, place: int) -> tuple[int, int]:
    """Parses a varint; returns the number and where it ends."""
    value = 0
    for shift in range(0, 64, 7):
        if place >= len(content):
            raise ValueError("a number is cut off")
        byte = content[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError("a number has more than 64 bits")


def _parsed(kind: Any, content: bytes, what: str) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise ValueError(f"{what} cannot be decoded") from error


def _data_files(folder: str, name: str, header: bytes) -> list[tuple[str, int]]:
    from tensorflow.core.protobuf import tensor_bundle_pb2

    message = tensor_bundle_pb2.BundleHeaderProto
    values = _parsed(message, header, "the header")
    count = values.num_shards
    if values.endianness != message.LITTLE or not 1 <= count <= _MAX_DATA_FILES:
        raise ValueError(f"the header cannot be: {count} data files")
    files = []
    for number in range(count):
        file = f"{name}.data-{number:05d}-of-{count:05d}"
        path = listed_file(folder, file, listed_in=f"{name}.index")
        files.append((path, file_bytes(path)))
    return files


def _tensor(key: bytes, content: bytes, files: list[tuple[str, int]], remedy: str) -> StoredTensor:
    import tensorflow as tf
    from tensorflow.core.protobuf import tensor_bundle_pb2

    name = ascii(key.decode())[:200]
    entry = _parsed(tensor_bundle_pb2.BundleEntryProto, content, name)
    shape = tuple(axis.size for axis in entry.shape.dim)
    if entry.slices or entry.shape.unknown_rank or any(size < 0 for size in shape):
        raise ValueError(f"{name} has no shape of its own")
    try:
        dtype = tf.dtypes.as_dtype(entry.dtype)
        width = 1 if dtype == tf.string else dtype.size
    except (TypeError, KeyError) as error:
        raise ValueError(f"{name} is of no known type") from error
    is_numeric = dtype.is_floating or dtype.is_integer or dtype.is_bool or dtype.is_complex
    # A reference to a number counts as one too, and is none.
    is_numeric &= dtype == dtype.base_dtype
    if not is_numeric and dtype != tf.string:
        raise ValueError(f"{name} is no array of numbers or strings, but {dtype.name}")
    needed = math.prod(shape) * width
    # Every string takes at least the byte of its length.
    if entry.size != needed and (dtype != tf.string or entry.size < needed):
        raise ValueError(f"{name} of shape {shape} takes {needed} bytes, not {entry.size}")
    if not 0 <= entry.shard_id < len(files):
        raise ValueError(f"{name} is in data file {entry.shard_id} of {len(files)}")
    path, num_bytes = files[entry.shard_id]
    if entry.offset < 0:
        raise ValueError(f"{name} begins at byte {entry.offset}")
    if entry.offset + entry.size > num_bytes:
        # More often the data were cut than the index was altered.
        what = f"The tensor {name} ends at byte {entry.offset + entry.size}; there are {num_bytes}."
        raise DataDamagedError(what, where=path, remedy=remedy)
    return StoredTensor(dtype.name, shape, path, entry.offset, entry.size)


def _check_places(tensors: dict[str, StoredTensor]) -> None:
    filled = [tensor for tensor in tensors.values() if tensor.num_bytes]
    ordered = sorted(filled, key=lambda tensor: (tensor.data_file, tensor.offset))
    for one, other in itertools.pairwise(ordered):
        if one.data_file == other.data_file and one.offset + one.num_bytes > other.offset:
            raise ValueError(f"two tensors share byte {other.offset} of their data file")


def _check_ends(
    tensors: dict[str, StoredTensor], files: list[tuple[str, int]], remedy: str
) -> None:
    """Refuses data files that continue after their last tensor."""
    for path, num_bytes in files:
        ends = [each.offset + each.num_bytes for each in tensors.values() if each.data_file == path]
        if num_bytes != max(ends, default=0):
            what = f"The file has {num_bytes:,} bytes; its tensors end at {max(ends, default=0):,}."
            raise DataDamagedError(what, where=path, remedy=remedy)


def _check_strings(name: str, tensor: StoredTensor) -> None:
    """Strings are stored as their lengths, a checksum of four bytes, and their bytes."""
    count = math.prod(tensor.shape)
    if not count:
        return
    lengths = _read_range(tensor, min(tensor.num_bytes, 10 * count))
    place = total = 0
    for _ in range(count):
        length, place = _number(lengths, place)
        total += length
    if place + 4 + total != tensor.num_bytes:
        raise ValueError(f"the strings of {ascii(name)[:200]} do not fit into its bytes")


def _read_range(tensor: StoredTensor, num_bytes: int) -> bytes:
    if not is_remote(tensor.data_file):
        with open_regular_file(tensor.data_file) as file:
            file.seek(tensor.offset)
            return file.read(num_bytes)
    import tensorflow as tf

    try:
        with tf.io.gfile.GFile(tensor.data_file, "rb") as file:
            file.seek(tensor.offset)
            return file.read(num_bytes)
    except tf.errors.OpError as error:
        raise OSError(first_line(error)) from error


# Weights and ids hardly compress; this leaves room for arrays of zeros.
_MAX_RATIO = 64
_ALWAYS_ALLOWED_BYTES = 16 << 20
_MAX_ARRAYS = 100_000
_SUFFIX = ".npy"
_STORED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Numbers, bools, text, and the plain bytes that bfloat16 is stored as.
_KINDS = "biufcSUV"
_DAMAGES = (
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    NotImplementedError,
    OSError,
    OverflowError,
    RecursionError,
    RuntimeError,
    SyntaxError,
    tokenize.TokenError,
    TypeError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_array_archive(file: IO[bytes], *, max_bytes: int | None = None) -> dict[str, np.ndarray]:
    """Reads all arrays of an archive, if it is what it says and not too large.

    Args:
        file: binary file that can be sought.
        max_bytes: optional int. What all arrays may take together. By default
            64 times the size of the file, or 16 MiB if that is more.

    Returns:
        Dict of name to array; none has objects.

    Raises:
        ValueError: If it is no such archive, or too large.
    """
    num_bytes = file.seek(0, 2)
    file.seek(0)
    if max_bytes is None:
        max_bytes = max(_MAX_RATIO * num_bytes, _ALWAYS_ALLOWED_BYTES)
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            _check_members(members, max_bytes)
            arrays = {}
            for member in members:
                name = member.filename.removesuffix(_SUFFIX)
                arrays[name] = _named(name, archive, member)
            return arrays
    except _DAMAGES as error:
        raise ValueError(f"the archive cannot be read: {_reason(error)}") from error


def _check_members(members: list[zipfile.ZipInfo], max_bytes: int) -> None:
    names = [member.filename for member in members]
    if len(members) > _MAX_ARRAYS or len(set(names)) != len(names):
        raise ValueError(f"the archive has {len(members)} arrays, or two of one name")
    for member in members:
        if not member.filename.endswith(_SUFFIX) or member.compress_type not in _STORED:
            raise ValueError(f"{ascii(member.filename)[:200]} in the archive is no array")
    total = sum(member.file_size for member in members)
    if total > max_bytes:
        raise ValueError(f"the archive unpacks to {total:,} bytes; at most {max_bytes:,} are read")


def _named(name: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    try:
        return _read_array(archive, member)
    except (ValueError, *_DAMAGES) as error:
        what = f"the array {ascii(name)[:200]} cannot be read: {_reason(error)}"
        raise ValueError(what) from error


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as file:
        readers = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        version = np.lib.format.read_magic(file)
        if version not in readers:
            raise ValueError(f"it is of format {version}")
        with warnings.catch_warnings():
            # NumPy warns of headers of Python 2, which it reads all the same.
            warnings.simplefilter("ignore")
            shape, is_fortran, dtype = readers[version](file)
        if dtype.hasobject or dtype.kind not in _KINDS or dtype.names or dtype.subdtype:
            raise ValueError(f"it is of type {ascii(str(dtype))[:100]}")
        if any(size < 0 for size in shape):
            raise ValueError(f"it has the shape {shape}")
        num_bytes = math.prod(shape) * dtype.itemsize
        left = member.file_size - file.tell()
        if num_bytes != left:
            raise ValueError(f"it takes {num_bytes:,} bytes; {left:,} are there")
        content = file.read(num_bytes)
        if len(content) != num_bytes or file.read(1):
            raise ValueError("it is cut off")
    # A copy, so that it can be written to.
    array = np.frombuffer(bytearray(content), dtype) if content else np.zeros(0, dtype)
    array = array[: math.prod(shape)]
    return array.reshape(shape[::-1]).T if is_fortran else array.reshape(shape)
