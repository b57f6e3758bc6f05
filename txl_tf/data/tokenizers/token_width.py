"""How wide a token id is, and whether ids are in the vocabulary."""

from collections.abc import Sequence

import numpy as np

from txl_tf.data.record_format import token_dtype


def narrowest_token_dtype(vocabulary_size: int) -> np.dtype:
    """Returns the narrowest stored type that holds every id of a vocabulary.

    Args:
        vocabulary_size: int. Number of ids.

    Returns:
        The type of 1, 2 or 4 bytes, as records store it.
    """
    return token_dtype(1 if vocabulary_size <= 1 << 8 else 2 if vocabulary_size <= 1 << 16 else 4)


def checked_token_ids(token_ids: np.ndarray | Sequence[int], vocabulary_size: int) -> np.ndarray:
    """Returns ids as a vector, if all of them are in the vocabulary.

    Args:
        token_ids: vector of ints.
        vocabulary_size: int. Number of ids.

    Returns:
        Integer vector.

    Raises:
        ValueError: If an id is out of range or not an integer.
    """
    ids = np.asarray(token_ids)
    if ids.size == 0:
        return np.zeros(0, np.int32)
    if ids.dtype.kind not in "iu":
        raise ValueError(f"`token_ids` must be integers. Received: dtype {ids.dtype}")
    if ids.min() < 0 or ids.max() >= vocabulary_size:
        raise ValueError(
            f"`token_ids` must be in [0, {vocabulary_size}). "
            f"Received: ids from {ids.min()} to {ids.max()}"
        )
    return ids
