"""Verification of an exported version: every file, the graph, the variables and JSON."""

import os
from collections.abc import Callable

from txl_tf.errors import DataDamagedError
from txl_tf.model_folder import GRAPH_FILE
from txl_tf.storage.files import first_line, read_file
from txl_tf.storage.untrusted_files import (
    MAX_DESCRIPTION_BYTES,
    MAX_VALUES,
    open_tensor_bundle,
    parse_json,
    reading_failed,
    storage_errors,
    verify_checksums,
)

_REMEDY = "Export the model again."
_VARIABLES = os.path.join("variables", "variables")
# Protocol buffers are smaller than 2 GiB.
_MAX_GRAPH_BYTES = (1 << 31) - 1


def verify_export(folder: str, progress: Callable[[int], None] | None = None) -> int:
    """Verifies all files of a SavedModel, and returns their number.

    Every file must match its entry in `SHA256SUMS`, in the format of `sha256sum`; the graph must
    parse, and every variable must match TensorFlow's own checksum. Raises DataDamagedError for a
    missing, extra or changed file. `progress` gets the bytes read since the last call.
    """
    with storage_errors("The export cannot be read", folder, "Check the storage."):
        try:
            names = verify_checksums(folder, progress)
            _check_graph(os.path.join(folder, GRAPH_FILE))
            _check_variables(os.path.join(folder, _VARIABLES))
            _check_json(folder, names)
        except FileNotFoundError as error:
            raise _damaged("A file of the export is missing.", str(error.filename)) from error
    return len(names)


def _check_graph(path: str) -> None:
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import saved_model_pb2

    content = read_file(path, max_bytes=_MAX_GRAPH_BYTES)
    try:
        graphs = saved_model_pb2.SavedModel.FromString(content).meta_graphs
    except DecodeError as error:
        raise _damaged("The graph cannot be decoded.", path) from error
    if not any(graph.signature_def for graph in graphs):
        raise _damaged("The graph has no signatures.", path)


def _check_variables(prefix: str) -> None:
    import tensorflow as tf

    try:
        reader, stored = open_tensor_bundle(prefix, remedy=_REMEDY)
        for name in sorted(stored):
            # Reading compares the tensor with the checksum in the index.
            reader.get_tensor(name)
    except (tf.errors.OpError, RuntimeError, ValueError) as error:
        raise reading_failed(error, prefix, _REMEDY) from error


def _check_json(folder: str, names: list[str]) -> None:
    for name in names:
        if name.endswith(".json"):
            path = os.path.join(folder, name)
            try:
                parse_json(read_file(path, max_bytes=MAX_DESCRIPTION_BYTES), max_values=MAX_VALUES)
            except ValueError as error:
                raise _damaged(f"The file is not JSON: {first_line(error)}", path) from error


def _damaged(what: str, path: str) -> DataDamagedError:
    return DataDamagedError(what, where=path, remedy=_REMEDY)
