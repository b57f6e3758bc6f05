"""Files of token ids: NumPy arrays, lines of integers, and lists in JSON Lines."""

import array
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from txl_tf.data.sources.file_kinds import kind_of
from txl_tf.data.sources.parquet_files import parquet_values
from txl_tf.data.sources.text_files import json_of_line, line_place, numbered_lines, text_blocks
from txl_tf.data.sources.text_paths import text_files
from txl_tf.errors import DataDamagedError, errors_as, storage_errors
from txl_tf.storage.array_archives import read_array_archive
from txl_tf.storage.files import open_regular_file

_IDS_PER_PIECE = 1 << 16
_START_BYTES = 4096
_INTEGER = re.compile("[0-9]{1,18}")
_CONTROL = re.compile(rb"[\0-\x08\x0e-\x1f]")
_FLOATS_REMEDY = "Write integers: ids.astype(np.int32), or fmt='%d' of np.savetxt."
_ID_REMEDY = "Correct the id, leave padding out, or give a larger vocabulary."
_RAW_REMEDY = (
    "Save ids of other trainers with their type: np.save('ids.npy', np.fromfile(FILE, np.uint16)); "
    "offset=1024 for llm.c."
)


class IdDocuments:
    """Documents of token ids, in the form of text for `IdTokenizer`.

    The documents can be iterated more than once. These are documents, unless they are empty:

    - a vector, or a row of a matrix, in `.npy` or `.npz`; a matrix of one column is a vector;
    - a list in a row of Parquet; a column of integers is one document;
    - a line of integers; a text with one integer on each line is one document;
    - a list of integers in a line of JSON; in a list of lists, each inner list is a document.

    Args:
        paths: sequence of str. Files, folders or patterns, see `text_files`. The first bytes of a
            file determine its format.
        vocabulary_size: int. Number of ids; every id must be less.
        json_field: optional str. Field with the list if a line of JSON is an object, or column of
            Parquet. Defaults to `None`.

    Raises:
        InputMissingError: If a path has no file.
    """

    def __init__(
        self, paths: Sequence[str], vocabulary_size: int, json_field: str | None = None
    ) -> None:
        self.files = text_files(paths)
        self._size = vocabulary_size
        self._json_field = json_field

    def __iter__(self) -> Iterator[Iterator[bytes]]:
        num_documents = longest = 0
        for path in self.files:
            for values, place in _sequences(path, self._json_field):
                if values is not None and len(values):
                    yield self._pieces(values, place)
                    num_documents += 1
                    longest = max(longest, len(values))
        if num_documents > 1 and longest == 1:
            raise DataDamagedError(
                f"No document has two ids: {num_documents} documents of one.",
                where=self.files[0],
                remedy="Write all ids of a document into one line, list or vector.",
            )

    def _pieces(self, values: Any, place: str) -> Iterator[bytes]:
        """Yields the ids in digits, each followed by a space.

        A cut at white space, such as one of `split_by_fraction`, is then between two ids. Raises
        DataDamagedError for the first id that is not valid.
        """
        for start in range(0, len(values), _IDS_PER_PIECE):
            piece = values[start : start + _IDS_PER_PIECE]
            ids = piece.tolist() if isinstance(piece, np.ndarray) else piece
            if {*map(type, ids)} != {int} or min(ids) < 0 or max(ids) >= self._size:
                is_good = [type(each) is int and 0 <= each < self._size for each in ids]
                bad = is_good.index(False)
                raise DataDamagedError(
                    f"An id must be an integer from 0 to {self._size - 1}, not {ids[bad]!r:.60}.",
                    where=f"{place}, index {start + bad}",
                    remedy=_FLOATS_REMEDY if "." in str(ids[bad])[:60] else _ID_REMEDY,
                )
            yield b"%d " * len(ids) % tuple(ids)


def _sequences(path: str, json_field: str | None) -> Iterator[tuple[Any, str]]:
    """Yields the lists or vectors of a file with their places, for errors."""
    remedy = "Save vectors or matrices of integers."
    with storage_errors("The file of ids cannot be read", path), open_regular_file(path) as file:
        start = file.read(_START_BYTES)
        with errors_as(DataDamagedError, ValueError, "The arrays cannot be read", path, remedy):
            if start.startswith(b"\x93NUMPY"):
                only_array = np.load(path, mmap_mode="r", allow_pickle=False)
                if only_array.offset + only_array.nbytes != os.path.getsize(path):
                    raise ValueError("more than one array is in it; np.savez keeps several")
                arrays = {"": only_array}
            else:
                arrays = read_array_archive(file) if kind_of(start) == "zip" else {}
    for name, values in arrays.items():
        place = f"{path}, array {name}" if name else path
        if values.ndim not in (1, 2):
            raise DataDamagedError(
                f"An array of ids must have 1 or 2 axes, not {values.ndim}.",
                where=place,
                remedy=remedy,
            )
        if values.ndim == 1 or values.shape[1] == 1:
            yield values.reshape(-1), place
        else:
            yield from ((row, f"{place}, row {number}") for number, row in enumerate(values))
    if kind_of(start) == "parquet":
        yield from parquet_values(path, json_field)
    elif not arrays:
        yield from _lines(path, json_field)


def _lines(path: str, json_field: str | None) -> Iterator[tuple[Any, str]]:
    if _CONTROL.search(next(text_blocks(path), b"")[:_START_BYTES]):
        raise DataDamagedError(
            "The file has neither integers in digits nor an array with its type.",
            where=path,
            remedy=_RAW_REMEDY,
        )
    lines = (line.lstrip() for _, _, line in numbered_lines(path))
    is_column = all(
        line[:1] not in b"[{" and len(line.split(None, 2)) == 1 for line in lines if line
    )
    column = array.array("q")
    for number, offset, line in numbered_lines(path):
        place = f"{path}, line {number}"
        if not line.lstrip().startswith((b"[", b"{")):
            words = line.decode(errors="replace").split()
            # Other words stay words, which `_pieces` refuses with their place.
            ids: Any = [int(word) if _INTEGER.fullmatch(word) else word for word in words]
            if is_column and all(type(each) is int for each in ids):
                column.extend(ids)
            else:
                yield ids, place
            continue
        ids = json_of_line(line, json_field, line_place(path, number, offset))
        if not isinstance(ids, list):
            raise DataDamagedError(
                f"A line must have a list of ids, not a value of type {type(ids).__name__}.",
                where=place,
                remedy="Write a list of ids, or name the field that has the list: --field.",
            )
        if ids and all(isinstance(each, list) for each in ids):
            yield from ((each, f"{place}, list {index}") for index, each in enumerate(ids, 1))
        else:
            yield ids, place
    yield np.array(column, np.int64), path
