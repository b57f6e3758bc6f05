"""Writes indexes of TensorFlow checkpoints by hand, also ones that cannot be."""

import struct

from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import tensor_bundle_pb2

from tests.mutated_files.seals import seal_index

MAGIC = 0xDB4775248B80FB57


def entry(shape=(2, 3), *, offset=0, size=24, dtype=types_pb2.DT_FLOAT, shard=0):
    """One entry of an index."""
    message = tensor_bundle_pb2.BundleEntryProto(
        dtype=dtype, shard_id=shard, offset=offset, size=size
    )
    for length in shape:
        message.shape.dim.add(size=length)
    return message


def write_bundle(folder, entries, data=bytes(24), num_shards=1):
    """Writes index and data, and returns the prefix of their names."""
    header = tensor_bundle_pb2.BundleHeaderProto(num_shards=num_shards)
    table = {b"": header.SerializeToString()}
    table |= {name.encode(): message.SerializeToString() for name, message in entries.items()}
    block = _block(table)
    content = block + bytes(5)
    handle = _number(0) + _number(len(block))
    index = _block({b"~": handle})
    empty_at = len(content)
    empty = _block({})
    content += empty + bytes(5)
    index_at = len(content)
    content += index + bytes(5)
    handles = _number(empty_at) + _number(len(empty)) + _number(index_at) + _number(len(index))
    content += handles.ljust(40, b"\0") + struct.pack("<Q", MAGIC)
    prefix = folder / "state"
    path = folder / "state.index"
    path.write_bytes(content)
    seal_index(path)
    (folder / "state.data-00000-of-00001").write_bytes(data)
    return str(prefix)


def _block(table):
    content = b""
    for key, value in sorted(table.items()):
        content += _number(0) + _number(len(key)) + _number(len(value)) + key + value
    return content + struct.pack("<II", 0, 1)


def _number(value):
    content = b""
    while value >= 0x80:
        content += bytes([value & 0x7F | 0x80])
        value >>= 7
    return content + bytes([value])
