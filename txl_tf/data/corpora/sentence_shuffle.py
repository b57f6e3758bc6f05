"""Puts sentences into an order that looks random and is the same everywhere."""

import hashlib
from collections.abc import Iterable

import numpy as np

# Steele, Lea and Flood (2014), "Fast splittable pseudorandom number
# generators": the constants of SplitMix64.
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = np.uint64(0x94D049BB133111EB)


def shuffled_order(count: int, *keys: int | str) -> np.ndarray:
    """Returns the numbers below a bound in an order that the keys decide.

    Written out here because the generators of NumPy and Python promise the
    same order for one version only, and prepared data must not depend on it.

    Args:
        count: int. How many numbers.
        *keys: ints or strings. Seed and whatever else tells one order from
            another.

    Returns:
        int64 vector with the numbers from `0` to `count - 1`.
    """
    digest = hashlib.sha256("/".join(map(str, keys)).encode()).digest()
    start = np.uint64(int.from_bytes(digest[:8], "big"))
    with np.errstate(over="ignore"):
        values = start + np.arange(1, count + 1, dtype=np.uint64) * _INCREMENT
        values = (values ^ (values >> np.uint64(30))) * _FIRST_FACTOR
        values = (values ^ (values >> np.uint64(27))) * _SECOND_FACTOR
        values ^= values >> np.uint64(31)
    return np.argsort(values, kind="stable")


def shuffled_lines(blocks: Iterable[bytes], *keys: int | str) -> list[bytes]:
    """Reads lines and puts them into an order that the keys decide.

    Args:
        blocks: iterable of bytes. The text; it is held in memory.
        *keys: ints or strings. As for `shuffled_order`.

    Returns:
        List of lines, each with its line feed.
    """
    lines = b"".join(blocks).split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [lines[index] + b"\n" for index in shuffled_order(len(lines), *keys)]
