"""Refuses token ids beyond the vocabulary, as far as they can be looked at.

A compiled program cannot refuse: there an id beyond the table reads whatever
the backend has for it, zeros or another row.
"""

from typing import Any

import numpy as np


def check_token_ids(token_ids: Any, vocabulary_size: int, name: str = "token_ids") -> None:
    """Refuses ids that no vocabulary of this size has.

    Looked at are NumPy arrays, lists, and TensorFlow's eager tensors in the
    memory of the host. Everything else passes: within `tf.function` and
    other compiled functions there are no numbers yet, and asking an accelerator
    for them would stop it.

    Args:
        token_ids: ints of any shape.
        vocabulary_size: int.
        name: str. What they are called in the error.

    Raises:
        ValueError: If they are no integers, negative, or too large.
    """
    values = _on_host(token_ids)
    if values is None or not values.size:
        return
    if values.dtype.kind not in "iu":
        raise ValueError(f"`{name}` must be integers. Received: {name} of type {values.dtype}")
    least, most = values.min(), values.max()
    if least < 0 or most >= vocabulary_size:
        raise ValueError(
            f"`{name}` must be in [0, {vocabulary_size}). Received: from {least} to {most}"
        )


def _on_host(values: Any) -> np.ndarray | None:
    try:
        if isinstance(values, np.ndarray | np.generic | list | tuple | int | float):
            values = np.asarray(values)
            return values if values.dtype.kind in "biufc" else None
        if hasattr(values, "numpy") and "CPU" in str(getattr(values, "device", "")):
            return np.asarray(values.numpy())
    except (TypeError, ValueError, NotImplementedError):
        pass  # such as a list of tensors that have no numbers yet
    return None
