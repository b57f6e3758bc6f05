"""Requests to `score` that must be refused, each with its error message."""

import numpy as np

from tests.export.requests import nothing_read, random_ids, rows_of

TEXT = random_ids(2, 4)
GOOD = {
    **rows_of(TEXT),
    "target_ids": TEXT,
    "memory_states": np.ones((2, 2, 7, 8), "float32"),
    "memory_valid_length": np.array([7, 0], "int32"),
}


def with_id(token_id):
    changed = TEXT.copy()
    changed[1, 3] = token_id
    return changed


def with_state(value):
    changed = GOOD["memory_states"].copy()
    changed[1, 0, 6, 2] = value
    return changed


def states(*shape):
    return np.zeros(shape, "float32")


BAD = {
    "id V": ({"token_ids": with_id(256)}, r"token_ids\[1, 3\] is 256; it must be 0 to 255"),
    "id -1": ({"token_ids": with_id(-1)}, r"token_ids\[1, 3\] is -1"),
    "id 2^31-1": ({"token_ids": with_id(2**31 - 1)}, r"token_ids\[1, 3\] is 2147483647"),
    "target V": ({"target_ids": with_id(256)}, r"target_ids\[1, 3\] is 256"),
    "targets short": ({"target_ids": TEXT[:, :3]}, r"target_ids .*\(2, 3\).* must be \(2, 4\)"),
    "memory short": ({"memory_states": states(2, 2, 6, 8)}, r"\(2, 2, 6, 8\).*\(2, 2, 7, 8\)"),
    "memory long": ({"memory_states": states(2, 2, 8, 8)}, r"memory_states .*\(2, 2, 8, 8\)"),
    "memory row less": ({"memory_states": states(1, 2, 7, 8)}, r"\(1, 2, 7, 8\)"),
    "memory row more": ({"memory_states": states(3, 2, 7, 8)}, r"\(3, 2, 7, 8\)"),
    "memory width": ({"memory_states": states(2, 2, 7, 9)}, r"\(2, 2, 7, 9\)"),
    "memory rank": ({"memory_states": states(2, 7, 8)}, r"memory_states has the shape \(2, 7, 8\)"),
    "memory dtype": ({"memory_states": np.zeros((2, 2, 7, 8), "float64")}, "float"),
    "memory NaN": ({"memory_states": with_state(np.nan)}, r"memory_states\[1, 0, 6, 2\] is nan"),
    "memory Inf": ({"memory_states": with_state(-np.inf)}, r"memory_states\[1, 0, 6, 2\] is -inf"),
    "valid long": (
        {"memory_valid_length": np.array([7, 8], "int32")},
        r"memory_valid_length\[1\] is 8; it must be 0 to 7",
    ),
    "valid of nothing": (
        {"memory_states": states(0), "memory_valid_length": np.array([1, 0], "int32")},
        r"memory_valid_length\[0\] is 1; it must be 0 to 0",
    ),
    "valid rows": ({"memory_valid_length": np.array([7], "int32")}, "has 1 rows; the batch has 2"),
    "no rows": (
        {**rows_of(TEXT[:0]), "target_ids": TEXT[:0], **nothing_read(0)},
        "token_ids has no rows",
    ),
    "no tokens": (
        {**rows_of(TEXT[:, :0]), "target_ids": TEXT[:, :0]},
        r"tokens of token_ids\[0\] is 0; it must be 1 to 65536",
    ),
    "length 0": ({"lengths": np.array([4, 0], "int32")}, r"lengths\[1\] is 0; it must be 1 to 4"),
    "length long": ({"lengths": np.array([5, 4], "int32")}, r"lengths\[0\] is 5"),
    "ids rank": ({"token_ids": TEXT[0]}, r"token_ids has the shape \(4\).*\(rows, tokens\)"),
    "too many tokens": (
        {**rows_of(np.zeros((2, 65537), "int32")), "target_ids": np.zeros((2, 65537), "int32")},
        r"tokens of token_ids\[0\] is 65537",
    ),
}
