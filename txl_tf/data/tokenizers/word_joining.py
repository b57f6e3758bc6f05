"""Puts words together again."""

from collections.abc import Sequence

import numpy as np


def join_words(
    token_ids: np.ndarray, tokens: Sequence[bytes], mark_id: int | None, is_double: bool
) -> bytes:
    """Writes words with a space between them, and lines.

    Args:
        token_ids: int vector. Ids of the vocabulary.
        tokens: sequence of bytes. The vocabulary.
        mark_id: optional int. The id that marks lines, where there is one.
        is_double: bool. Whether lines are marked at both ends. Then the marks
            come in pairs, of which the first is dropped; ids that begin within
            a line begin with the second of a pair.

    Returns:
        The text, with a line feed for every mark that is not dropped.
    """
    if mark_id is None:
        return b" ".join(map(tokens.__getitem__, token_ids))
    marks = token_ids == mark_id
    if is_double:
        opens = marks & ((np.cumsum(marks) % 2 == 1) == bool(marks[:1].any()))
        token_ids, marks = token_ids[~opens], marks[~opens]
    pairs = zip(token_ids, marks, strict=True)
    words = [b"\n" if is_mark else tokens[index] for index, is_mark in pairs]
    return b" ".join(words).replace(b" \n", b"\n").replace(b"\n ", b"\n")
