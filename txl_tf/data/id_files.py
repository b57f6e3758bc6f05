"""Files of token ids: NumPy arrays, lines of integers, and lists in JSON Lines."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from txl_tf.data.text_files import json_of_line, line_place, numbered_lines, text_files
from txl_tf.errors import DataDamagedError
from txl_tf.storage.array_archives import read_array_archive
from txl_tf.storage.files import first_line, open_regular_file
from txl_tf.storage.untrusted_files import storage_errors

_IDS_PER_PIECE = 1 << 16
_INTEGER = re.compile("[0-9]{1,18}")


class IdDocuments:
    """Documents of token ids, as text for `IdTokenizer`; can be iterated more than once.

    A document is a vector or a row of a matrix in `.npy` or `.npz`, a line of integers, or a line
    with a list of them in JSON; a list of lists is a document for each. Empty ones are dropped.

    Args:
        paths: sequence of str. Files, folders or patterns; see `text_files`. Their first bytes
            tell the format.
        vocabulary_size: int. All ids must be less.
        json_field: optional str. Field with the list where a line is an object. Defaults to
            `None`.

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
        for path in self.files:
            for values, place in _sequences(path, self._json_field):
                if len(values):
                    yield self._pieces(values, place)

    def _pieces(self, values: Any, place: str) -> Iterator[bytes]:
        """Yields the ids in digits, each followed by a space; DataDamagedError names the first bad.

        A cut of a document at white space is between two ids.
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
                    remedy="Correct the id, leave padding out, or give a larger vocabulary.",
                )
            yield b"%d " * len(ids) % tuple(ids)


def _sequences(path: str, json_field: str | None) -> Iterator[tuple[Any, str]]:
    """Yields the lists or vectors of a file, and where each is."""
    remedy = "Save vectors or matrices of integers."
    with storage_errors("The file of ids cannot be read", path), open_regular_file(path) as file:
        start = file.read(4)
        try:
            if start == b"\x93NUM":
                arrays = {"": np.load(path, mmap_mode="r", allow_pickle=False)}
            else:
                arrays = read_array_archive(file) if start == b"PK\x03\x04" else {}
        except ValueError as error:
            what = f"The arrays cannot be read: {first_line(error)}"
            raise DataDamagedError(what, where=path, remedy=remedy) from error
    for name, array in arrays.items():
        place = f"{path}, array {name}" if name else path
        if array.ndim not in (1, 2):
            what = f"An array of ids must have 1 or 2 axes, not {array.ndim}."
            raise DataDamagedError(what, where=place, remedy=remedy)
        if array.ndim == 1:
            yield array, place
        else:
            yield from ((row, f"{place}, row {number}") for number, row in enumerate(array))
    if not arrays:
        yield from _lines(path, json_field)


def _lines(path: str, json_field: str | None) -> Iterator[tuple[Sequence[Any], str]]:
    for number, offset, line in numbered_lines(path):
        place = f"{path}, line {number}"
        if not line.lstrip().startswith((b"[", b"{")):
            words = line.decode(errors="replace").split()
            # Others stay words, which are refused by their place.
            yield [int(word) if _INTEGER.fullmatch(word) else word for word in words], place
            continue
        ids = json_of_line(line, json_field, line_place(path, number, offset))
        if not isinstance(ids, list):
            what = f"A line must have a list of ids, not a value of type {type(ids).__name__}."
            remedy = "Write a list of ids, or name the field that has the list: --field."
            raise DataDamagedError(what, where=place, remedy=remedy)
        if ids and all(isinstance(each, list) for each in ids):
            yield from ((each, f"{place}, list {index}") for index, each in enumerate(ids, 1))
        else:
            yield ids, place
