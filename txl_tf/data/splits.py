"""Division of documents into train, valid and test."""

import array
import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator

import numpy as np

from txl_tf.data.text import Document, Reread, byte_range, pieces_of, text_changed
from txl_tf.errors import DataDamagedError

# Documents are identified by their first 64 KiB, because different documents rarely share more.
_HASHED_BYTES = 1 << 16


def split_by_fraction(
    documents: Iterable[Document],
    valid_fraction: float = 0.05,
    test_fraction: float = 0.05,
    *,
    seed: int = 0,
    where: str = "the input",
) -> dict[str, Iterable[Document]]:
    """Divides documents into train, valid and test by their size in bytes.

    Documents are sorted by the SHA-256 of the seed and their first 64 KiB. First valid, then test
    gets documents from the beginning of this order, until it has its fraction of the bytes as
    nearly as whole documents allow. Equal documents are in the same split. Within a split the
    documents have the order of the input.

    A single document is cut into train, valid and test, in this order. Each cut is at the nearest
    line end (LF, CR LF or CR) within a distance: 0.5 % of the text, but at most 64 KiB and at most
    a quarter of the smallest split. Without a line end it is at white space within the same
    distance or 16 bytes, and without white space between two characters.

    The documents are read once here, and again for every use of a split. Memory holds about 20
    bytes per document.

    Args:
        documents: iterable of documents that can be iterated more than once.
        valid_fraction: float in `[0, 1)`. Fraction of the bytes for valid; `0` omits the split.
            Defaults to `0.05`.
        test_fraction: float in `[0, 1)`. Fraction of the bytes for test; `0` omits the split.
            Defaults to `0.05`.
        seed: int. Seed of the order. Defaults to `0`.
        where: str. Name of the input, for errors.

    Returns:
        Dict of split name to an iterable of documents, which can be iterated more than once.

    Raises:
        ValueError: If the fractions leave nothing to train on.
        DataDamagedError: If there is no text, or there are too few documents for a split.
    """
    fractions = {"valid": valid_fraction, "test": test_fraction}
    if min(fractions.values()) < 0 or not valid_fraction + test_fraction < 1:
        raise ValueError(
            "`valid_fraction` and `test_fraction` must be at least 0, and their sum less than 1. "
            f"Received: valid_fraction={valid_fraction}, test_fraction={test_fraction}"
        )
    names = ["train", *(name for name, fraction in fractions.items() if fraction)]
    hashes, sizes = _survey(documents, seed)
    if not sizes.sum():
        raise _too_little_error("The input has no text.", where)
    if len(names) == 1:
        return {"train": documents}
    if len(sizes) == 1:
        return _cut_one(documents, int(sizes[0]), fractions, where)
    parts = np.zeros(len(sizes), np.uint8)
    for number, name in enumerate(names[1:], 1):
        target = fractions[name] * int(sizes.sum())
        parts[_choose_documents(hashes, sizes, parts == 0, target)] = number
    for number, name in enumerate(names):
        if number not in parts:
            raise _too_little_error(
                f"{len(sizes)} documents are too few, or too much alike, to have a {name} split.",
                where,
            )
    return {
        name: Reread(_documents_of_split, documents, parts == number)
        for number, name in enumerate(names)
    }


def _survey(documents: Iterable[Document], seed: int) -> tuple[np.ndarray, np.ndarray]:
    hashes, sizes = array.array("Q"), array.array("Q")
    for document in documents:
        digest = hashlib.sha256(f"{seed}:".encode())
        size = 0
        for piece in pieces_of(document):
            digest.update(piece[: max(0, _HASHED_BYTES - size)])
            size += len(piece)
        hashes.append(int.from_bytes(digest.digest()[:8], "big"))
        sizes.append(size)
    return np.array(hashes, np.uint64), np.array(sizes, np.uint64)


def _choose_documents(
    hashes: np.ndarray, sizes: np.ndarray, is_free: np.ndarray, target: float
) -> np.ndarray:
    """Returns a mask of free documents for a split that have about `target` bytes together.

    Documents with more than twice these bytes are left to other splits if possible.
    """
    free = np.flatnonzero(is_free)
    order = free[np.argsort(hashes[free], kind="stable")]
    fitting = order[sizes[order] <= 2 * target]
    if not len(free):
        return is_free
    if not len(fitting):
        fitting = order[np.argsort(sizes[order], kind="stable")][:1]
    totals = np.cumsum(sizes[fitting].astype(np.float64))
    # At least one document, then as many as bring the total nearest to the target.
    count = 1 + int(np.argmin(np.abs(totals - target)))
    return is_free & np.isin(hashes, hashes[fitting[:count]])


def _documents_of_split(documents: Iterable[Document], is_member: np.ndarray) -> Iterator[Document]:
    """Yields the documents of one split; StorageError if their number has changed."""
    for document, is_own in itertools.zip_longest(documents, is_member):
        if document is None or is_own is None:
            raise text_changed()
        if is_own:
            yield document


def _stretch(documents: Iterable[Document], start: int, stop: int) -> Iterator[bytes]:
    """Yields the bytes of a single document from `start` to `stop`."""
    return byte_range(pieces_of(next(iter(documents), b"")), start, stop)


# A cut moves at most this fraction of the text and of the smallest split, and these bytes.
_MAX_TEXT_FRACTION = 0.005
_MAX_SPLIT_FRACTION = 0.25
_MAX_MOVE_BYTES = 1 << 16
_LINE_END = re.compile(rb"\r\n?|\n")
_WHITE_SPACE = re.compile(rb"[ \t\x0b\x0c]")
_CHARACTER = re.compile(rb"(?=[^\x80-\xbf])")
# A character has at most four bytes in UTF-8.
_CHARACTER_BYTES = 4
# A cut never divides a word of fewer bytes, such as a number.
_WORD_BYTES = 16


def _cut_one(
    documents: Iterable[Document], size: int, fractions: dict[str, float], where: str
) -> dict[str, Iterable[Document]]:
    train, before_test = 1 - fractions["valid"] - fractions["test"], 1 - fractions["test"]
    smallest = min(part for part in (train, *fractions.values()) if part)
    reach = min(
        int(size * min(_MAX_TEXT_FRACTION, smallest * _MAX_SPLIT_FRACTION)), _MAX_MOVE_BYTES
    )
    first = _cut(documents, size, round(size * train), reach)
    second = _cut(documents, size, round(size * before_test), reach) if fractions["test"] else size
    bounds = {"train": (0, first), "valid": (first, second), "test": (second, size)}
    splits: dict[str, Iterable[Document]] = {}
    for name, (start, stop) in bounds.items():
        if name != "train" and not fractions[name]:
            continue
        if start >= stop:
            raise _too_little_error(
                f"The only document is too short to have a {name} split.", where
            )
        splits[name] = (Reread(_stretch, documents, start, stop),)
    return splits


def _cut(documents: Iterable[Document], size: int, target: int, reach: int) -> int:
    """Returns the best place near a target: after a line end, white space or a character."""
    margin = max(reach, _WORD_BYTES) + _CHARACTER_BYTES
    start = max(0, target - margin)
    window = b"".join(_stretch(documents, start, min(size, target + margin)))
    return start + _best_cut(window, target - start, reach)


def _best_cut(window: bytes, target: int, reach: int) -> int:
    spaces = (_WHITE_SPACE, max(reach, _WORD_BYTES))
    for pattern, tolerance in ((_LINE_END, reach), spaces, (_CHARACTER, _CHARACTER_BYTES)):
        ends = [match.end() for match in pattern.finditer(window)]
        nearest = min(ends, key=lambda end: abs(end - target), default=-1 - tolerance)
        if abs(nearest - target) <= tolerance:
            return nearest
    return target


def _too_little_error(what: str, where: str) -> DataDamagedError:
    return DataDamagedError(
        what,
        where=where,
        remedy="Use more text, other fractions for valid and test, or files for each split.",
    )
