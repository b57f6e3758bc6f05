"""Version folder of an export: SavedModel and the SHA-256 of each file.

A server watches the folder of all versions and loads each that appears under a number. So
a version is written under another name, flushed to disk, and renamed when complete.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, tensor_pb2, tensor_shape_pb2
from tensorflow.core.protobuf import saved_model_pb2

from txl_tf.errors import StorageError
from txl_tf.export.graph_compaction import compact_graph
from txl_tf.model_folder import GRAPH_FILE
from txl_tf.storage.files import (
    file_sha256,
    first_line,
    is_remote,
    list_folder,
    make_folder,
    read_file,
    remove_file,
    write_file,
)
from txl_tf.storage.local_files import flush_tree_to_disk
from txl_tf.storage.staging import StagingFolder
from txl_tf.storage.untrusted_files import CHECKSUMS_FILE, files_below


def next_version(folder: str) -> int:
    """Returns the number after the highest in a folder of versions, which may not exist yet.

    Raises:
        StorageError: If the folder cannot be read.
    """
    try:
        names = list_folder(folder)
    except OSError as error:
        raise _storage_error(folder, error, "read") from error
    return max((int(name) for name in names if name.isdecimal()), default=0) + 1


def write_version(
    folder: str,
    root: tf.Module,
    signatures: dict[str, Any],
    shapes: dict[str, list[int]],
    files: dict[str, bytes],
    defaults: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Writes a SavedModel, further files by path, and the checksums of all of them.

    The first signature is the default. The signatures show `shapes` to clients, -1 for an open
    axis; `defaults` are the values of inputs that a request omits. Raises OutputExistsError if
    the folder exists or is being written.
    """
    try:
        with StagingFolder(folder, last_file=GRAPH_FILE) as staging:
            options = tf.saved_model.SaveOptions(save_debug_info=False)
            tf.saved_model.save(root, staging.path, _with_default(signatures), options)
            _finish_graph(os.path.join(staging.path, GRAPH_FILE), shapes, defaults or {})
            # It identifies the graph before compaction; the checksums identify all files.
            remove_file(os.path.join(staging.path, "fingerprint.pb"))
            for name, content in files.items():
                path = os.path.join(staging.path, name)
                make_folder(os.path.dirname(path))
                write_file(path, content)
            _write_checksums(staging.path)
            if not is_remote(folder):
                flush_tree_to_disk(staging.path)
            staging.publish()
    except (OSError, tf.errors.OpError) as error:
        raise _storage_error(folder, error, "written") from error


def _with_default(signatures: dict[str, Any]) -> dict[str, Any]:
    """Adds the name that servers use if a request names no signature."""
    named = {name: function.get_concrete_function() for name, function in signatures.items()}
    return {"serving_default": next(iter(named.values())), **named}


def _finish_graph(
    path: str, shapes: dict[str, list[int]], defaults: Mapping[str, np.ndarray]
) -> None:
    """Compacts the graph, and declares the shapes and defaults of the inputs.

    The graph itself leaves shapes open, so that its guards see every request unchanged. Clients
    and `saved_model_cli` read them from the signatures.
    """
    saved_model = saved_model_pb2.SavedModel.FromString(read_file(path))
    compact_graph(saved_model)
    (graph,) = saved_model.meta_graphs
    for definition in graph.signature_def.values():
        for name, tensor in definition.inputs.items():
            if name in shapes:
                tensor.tensor_shape.CopyFrom(_shape_proto(shapes[name]))
            if name in defaults:
                definition.defaults[name].CopyFrom(tf.make_tensor_proto(defaults[name]))
                _give_default(graph.graph_def, tensor.name, definition.defaults[name])
    write_file(path, saved_model.SerializeToString(deterministic=True))


def _give_default(graph: graph_pb2.GraphDef, tensor: str, value: tensor_pb2.TensorProto) -> None:
    """Gives a placeholder a default value, for sessions of the graph."""
    (placeholder,) = (node for node in graph.node if f"{node.name}:0" == tensor)
    constant = graph.node.add(name=f"{placeholder.name}_default", op="Const")
    constant.attr["dtype"].type = value.dtype
    constant.attr["value"].tensor.CopyFrom(value)
    placeholder.op = "PlaceholderWithDefault"
    if "shape" not in placeholder.attr:  # an absent shape is open
        placeholder.attr["shape"].shape.unknown_rank = True
    placeholder.input.append(constant.name)


def _shape_proto(sizes: list[int]) -> tensor_shape_pb2.TensorShapeProto:
    dimensions = [tensor_shape_pb2.TensorShapeProto.Dim(size=size) for size in sizes]
    return tensor_shape_pb2.TensorShapeProto(dim=dimensions)


def _write_checksums(folder: str) -> None:
    lines = [f"{file_sha256(os.path.join(folder, name))}  {name}\n" for name in files_below(folder)]
    write_file(os.path.join(folder, CHECKSUMS_FILE), "".join(lines).encode())


def _storage_error(folder: str, error: Exception, done: str) -> StorageError:
    return StorageError(
        f"The SavedModel cannot be {done}: {first_line(error)}",
        where=folder,
        remedy="Make room, or choose another folder.",
    )
