"""One text file, cut into three contiguous splits."""

import os
from collections.abc import Iterable, Iterator

from txl_tf.errors import DataDamagedError, InputMissingError, StorageError

_PIECE_BYTES = 1 << 20
_SEARCH_BYTES = 1 << 20


def read_text_splits(
    path: str, valid_fraction: float = 0.05, test_fraction: float = 0.05
) -> dict[str, Iterable[Iterable[bytes]]]:
    """Cuts a text file into train, valid and test, in this order.

    Cuts are at line ends; where there is none within a megabyte, after a space,
    or else between two UTF-8 characters. Each split is one document, given in
    pieces of about a megabyte; the file is never held in memory.

    Args:
        path: str. The text file.
        valid_fraction: float in `[0, 1)`. Part of the bytes; `0` leaves the
            split out. Defaults to `0.05`.
        test_fraction: float in `[0, 1)`. Likewise. Defaults to `0.05`.

    Returns:
        Dict of split name to its one document, itself an iterable of bytes.

    Raises:
        ValueError: If the fractions leave nothing to train on.
        InputMissingError: If there is no such file.
        DataDamagedError: If the file is empty or too short to be cut.
        StorageError: If the file cannot be read.
    """
    if min(valid_fraction, test_fraction) < 0 or not valid_fraction + test_fraction < 1:
        raise ValueError(
            "`valid_fraction` and `test_fraction` must not be negative and together less than 1. "
            f"Received: valid_fraction={valid_fraction}, test_fraction={test_fraction}"
        )
    size = text_file_bytes(path)
    if size == 0:
        raise DataDamagedError("The text file is empty.", where=path, remedy="Name another file.")
    train_end = _cut(path, size, round(size * (1 - valid_fraction - test_fraction)))
    valid_end = _cut(path, size, round(size * (1 - test_fraction))) if valid_fraction else train_end
    bounds = {"train": (0, train_end)}
    if valid_fraction:
        bounds["valid"] = (train_end, valid_end)
    if test_fraction:
        bounds["test"] = (valid_end, size)
    for name, (start, stop) in bounds.items():
        if start >= stop:
            raise DataDamagedError(
                f"The text file is too short: its {name} split is empty.",
                where=path,
                remedy="Use a longer file, or other fractions for valid and test.",
            )
    return {name: (_Pieces(path, start, stop),) for name, (start, stop) in bounds.items()}


def text_file_bytes(path: str) -> int:
    """Returns the size of a text file in bytes.

    Args:
        path: str. The text file.

    Returns:
        The size in bytes.

    Raises:
        InputMissingError: If there is no such file.
        StorageError: If the file cannot be looked at.
    """
    if not os.path.isfile(path):
        raise InputMissingError(
            "There is no such text file.", where=path, remedy="Name an existing file."
        )
    try:
        return os.path.getsize(path)
    except OSError as error:
        raise _unreadable(path, error) from error


class _Pieces:
    """The bytes of a part of a file, in pieces that end at line ends."""

    def __init__(self, path: str, start: int, stop: int) -> None:
        self._path = path
        self._start = start
        self._stop = stop

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._start)
                remaining = self._stop - self._start
                while remaining:
                    block = file.read(min(_PIECE_BYTES, remaining))
                    if not block:
                        raise OSError("it has become shorter while being read")
                    remaining -= len(block)
                    rest += block
                    end = _boundary(rest, len(rest) // 2, last=True) if remaining else len(rest)
                    yield rest[:end]
                    rest = rest[end:]
        except OSError as error:
            raise _unreadable(self._path, error) from error


def _cut(path: str, size: int, target: int) -> int:
    """The first boundary at or after the target."""
    if target <= 0 or target >= size:
        return min(max(target, 0), size)
    try:
        with open(path, "rb") as file:
            file.seek(target - 1)
            window = file.read(_SEARCH_BYTES)
    except OSError as error:
        raise _unreadable(path, error) from error
    return target - 1 + _boundary(window, 0, last=False)


def _boundary(text: bytes, start: int, *, last: bool) -> int:
    """The length of the text up to a line end, space or character end from `start` on."""
    find = text.rfind if last else text.find
    for separator in (b"\n", b" "):
        index = find(separator, start)
        if index >= 0:
            return index + 1
    # At most three bytes continue a character; more are not UTF-8 anyway.
    for end in range(len(text) - 1, len(text) - 5, -1) if last else range(1, 5):
        if 0 < end < len(text) and text[end] & 0xC0 != 0x80:
            return end
    return len(text) if last else 1


def _unreadable(path: str, error: OSError) -> StorageError:
    what = f"The text file cannot be read: {error.strerror or error}"
    return StorageError(what, where=path, remedy="Check the file and its permissions.")
