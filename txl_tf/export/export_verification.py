"""Verification of an exported version: every file, the graph, the variables and the cards."""

import os
import re
from collections.abc import Callable

from txl_tf.errors import DataDamagedError
from txl_tf.storage.array_files import open_tensor_bundle
from txl_tf.storage.files import file_bytes, file_sha256, first_line, read_file
from txl_tf.storage.untrusted_files import (
    MAX_DESCRIPTION_BYTES,
    MAX_VALUES,
    files_below,
    listed_file,
    parse_json,
    reading_failed,
    storage_errors,
)

CHECKSUMS_FILE = "SHA256SUMS"
GRAPH_FILE = "saved_model.pb"
EXTRA = "assets.extra"
"""Folder of cards and vocabulary, which a server does not read, and of warm-up requests."""
CARD_FILE = f"{EXTRA}/model_card.json"
_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")
_REMEDY = "Export the model again."
_VARIABLES = os.path.join("variables", "variables")
# Protocol buffers are smaller than 2 GiB.
_MAX_BYTES = {
    ".index": MAX_DESCRIPTION_BYTES,
    ".json": MAX_DESCRIPTION_BYTES,
    ".pb": (1 << 31) - 1,
}


def verify_export(folder: str, progress: Callable[[int], None] | None = None) -> int:
    """Verifies all files of a SavedModel, and returns their number.

    Every file must match its entry in `SHA256SUMS`, in the format of `sha256sum`; the graph must
    parse, and every variable must match TensorFlow's own checksum. Raises DataDamagedError for a
    missing, extra or changed file. `progress` gets the bytes read since the last call.
    """
    with storage_errors("The export cannot be read", folder, "Check the storage."):
        try:
            names = files_below(folder)
            _check_sums(folder, names, progress)
            _check_graph(os.path.join(folder, GRAPH_FILE))
            _check_variables(os.path.join(folder, _VARIABLES))
            _check_cards(folder, names)
        except FileNotFoundError as error:
            raise _damaged("A file of the export is missing.", str(error.filename)) from error
    return len(names)


def _check_sums(folder: str, names: list[str], progress: Callable[[int], None] | None) -> None:
    where = os.path.join(folder, CHECKSUMS_FILE)
    content = read_file(where, max_bytes=MAX_DESCRIPTION_BYTES)
    *lines, rest = content.decode("utf-8", "replace").split("\n")
    matches = [_LINE.fullmatch(line) for line in lines]
    if rest or not all(matches):
        raise _damaged("The list of checksums has a line that is none.", where)
    sums = {match[2]: match[1] for match in matches if match}
    if len(sums) != len(lines):
        raise _damaged("The list of checksums names a file twice.", where)
    for name in names:
        if name != CHECKSUMS_FILE and name not in sums:
            raise _damaged("A file is not in the list of checksums.", os.path.join(folder, name))
    for name in sorted(sums):
        path = listed_file(folder, name, listed_in=where, remedy=_REMEDY)
        most = _MAX_BYTES.get(os.path.splitext(name)[1])
        if most is not None and file_bytes(path) > most:
            raise _damaged("The file is longer than any of its kind.", path)
        found = file_sha256(path, progress)
        if found != sums[name]:
            what = f"The file has SHA-256 {found}; the list says {sums[name]}."
            raise _damaged(what, path)


def _check_graph(path: str) -> None:
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import saved_model_pb2

    try:
        graphs = saved_model_pb2.SavedModel.FromString(read_file(path)).meta_graphs
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


def _check_cards(folder: str, names: list[str]) -> None:
    for name in names:
        if name.endswith(".json"):
            path = os.path.join(folder, name)
            try:
                parse_json(read_file(path, max_bytes=MAX_DESCRIPTION_BYTES), max_values=MAX_VALUES)
            except ValueError as error:
                raise _damaged(f"The file is not JSON: {first_line(error)}", path) from error


def _damaged(what: str, path: str) -> DataDamagedError:
    return DataDamagedError(what, where=path, remedy=_REMEDY)
