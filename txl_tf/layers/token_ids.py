"""Checks of token ids, where their values or shapes are known."""

from typing import Any

import numpy as np


def check_token_ids(token_ids: Any, vocabulary_size: int, name: str = "token_ids") -> None:
    """Raises ValueError for known ids that are not integers or outside the vocabulary.

    In compiled functions there are no values yet, and reading them from an accelerator would stall
    it. There the backend returns zeros or another row for such an id.
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


def check_rank(
    token_ids: Any, ranks: tuple[int, ...], expected: str, name: str = "token_ids"
) -> None:
    """Raises ValueError for token ids that are known to have another rank."""
    shape = getattr(token_ids, "shape", ())
    rank = shape.rank if hasattr(shape, "rank") else len(shape)  # None in TensorFlow, if unknown
    if rank is not None and rank not in ranks:
        shape_text = f"shape {tuple(shape)}" if shape else type(token_ids).__name__
        raise ValueError(f"`{name}` must be a tensor {expected}. Received: {shape_text}")


def _on_host(values: Any) -> np.ndarray | None:
    try:
        if isinstance(values, np.ndarray | np.generic | list | tuple | int | float):
            values = np.asarray(values)
            return values if values.dtype.kind in "biufc" else None
        if hasattr(values, "numpy") and "CPU" in str(getattr(values, "device", "")):
            return np.asarray(values.numpy())
    except (TypeError, ValueError, NotImplementedError):
        pass  # for example a list of symbolic tensors
    return None
