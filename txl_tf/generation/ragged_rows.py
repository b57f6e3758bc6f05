"""Rows of different lengths as tensors of few shapes."""

import numpy as np


def piece_length(num_tokens: int, segment_length: int) -> int:
    """How many tokens of what is left are read at once.

    Every length is one more program to compile, so there are few of them.

    Args:
        num_tokens: int. What is left of the longest row.
        segment_length: int. The most that is read at once.

    Returns:
        `segment_length`, or the smallest power of 2 that is enough.
    """
    if num_tokens >= segment_length:
        return segment_length
    return min(segment_length, 1 << (num_tokens - 1).bit_length())


def padded(rows: list[np.ndarray], length: int) -> tuple[np.ndarray, np.ndarray]:
    """The beginnings of rows, with zeros behind the short ones.

    Args:
        rows: list of `B` int vectors.
        length: int. `T`.

    Returns:
        Tuple of int32 arrays: the tokens `(B, T)` and how many of them are the
        row's, `(B,)`.
    """
    token_ids = np.zeros((len(rows), length), np.int32)
    for padded_row, row in zip(token_ids, rows, strict=True):
        padded_row[: len(row)] = row[:length]
    return token_ids, np.array([min(len(row), length) for row in rows], np.int32)


def common_length(lengths: np.ndarray) -> np.ndarray:
    """Lengths as a scalar where they are all the same, which is faster."""
    lengths = np.asarray(lengths, np.int32)
    return lengths[0] if (lengths == lengths[0]).all() else lengths
