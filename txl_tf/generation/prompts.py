"""Checks what is to be gone on from."""

from typing import Any

import numpy as np

from txl_tf.layers.token_id_check import check_token_ids


def prompt_rows(prompt_ids: Any, num_rows: int, vocabulary_size: int) -> list[np.ndarray]:
    """Prompts as vectors.

    Args:
        prompt_ids: int array `(R, P)`, or a sequence of `R` int vectors.
        num_rows: int. `R`.
        vocabulary_size: int. `V`.

    Returns:
        List of `R` int32 vectors with at least one token each.

    Raises:
        ValueError: If they are not that.
    """
    rows = [np.asarray(row) for row in prompt_ids]
    if len(rows) != num_rows or any(row.ndim != 1 or not row.size for row in rows):
        raise ValueError(
            f"`prompt_ids` must have {num_rows} rows and at least one token in every row. "
            f"Received: shapes={[row.shape for row in rows]}"
        )
    for row in rows:
        check_token_ids(row, vocabulary_size, "prompt_ids")
    return [row.astype(np.int32) for row in rows]
