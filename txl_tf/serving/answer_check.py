"""Holds an answer to one text against what its signature promises.

A session would otherwise keep whatever a server says as its memory, and send it
back for the rest of the text.
"""

from collections.abc import Mapping

import ml_dtypes
import numpy as np

from txl_tf.serving.prediction_error import PredictionError
from txl_tf.serving.status_code import StatusCode

_KINDS = {"nll": "f", "probabilities": "f", "texts_bytes": "O", "candidate_texts_bytes": "O"}
_MEMORY_KINDS = {np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)}


def require_answer(
    answer: Mapping[str, np.ndarray],
    signature_name: str,
    shapes: Mapping[str, tuple[int | None, ...]],
    memory_shape: tuple[int | None, ...],
) -> None:
    """Refuses an answer that is not for one row, or has numbers that cannot be.

    Args:
        answer: dict of output name to array.
        signature_name: str. What was asked.
        shapes: dict of the outputs that are needed, beside memory, to their
            shapes; None is any size.
        memory_shape: the shape of memory as the signature takes it.

    Raises:
        PredictionError: INTERNAL with the first thing that is wrong.
    """
    wanted = {**shapes, "memory_states": memory_shape, "memory_valid_length": (1,)}
    for name, sizes in wanted.items():
        fault = _fault(name, answer.get(name), sizes)
        if fault:
            raise refused_answer(f"{name} {fault}", signature_name)
    memory_length = answer["memory_states"].shape[2]
    limits = {"memory_valid_length": memory_length}
    if "lengths" in shapes:
        limits["lengths"] = answer["nll"].shape[1]
    for name, highest in limits.items():
        number = int(answer[name][0])
        if not 0 <= number <= highest:
            raise refused_answer(f"{name} is {number}; it can be 0 to {highest}.", signature_name)


def refused_answer(message: str, signature_name: str) -> PredictionError:
    """The error of an answer that cannot be one.

    Args:
        message: str. What is wrong with it.
        signature_name: str. What was asked.

    Returns:
        `PredictionError` with INTERNAL.
    """
    words = f"The answer is not one of this signature: {message}"
    return PredictionError(
        StatusCode.INTERNAL, words, server="the server", signature=signature_name
    )


def _fault(name: str, array: np.ndarray | None, sizes: tuple[int | None, ...]) -> str:
    """What is wrong with an array; empty if nothing is."""
    if array is None:
        return "is missing."
    fits = array.ndim == len(sizes) and all(
        size in (None, found) for found, size in zip(array.shape, sizes, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in sizes)
        return f"has the shape {list(array.shape)}; it must be [{wanted}]."
    if name == "memory_states":
        if array.dtype not in _MEMORY_KINDS:
            return f"is of type {array.dtype}."
        return "" if np.all(np.isfinite(array)) else "has numbers that are not finite."
    kind = _KINDS.get(name, "i")
    if array.dtype.kind != kind:
        return f"is of type {array.dtype}."
    if kind == "f" and not (np.all(np.isfinite(array)) and np.all(array >= 0)):
        return "has numbers that are not finite, or negative."
    if kind == "i" and np.any(array < 0):
        return "has negative numbers."
    if kind == "O" and not all(isinstance(each, bytes) for each in array.ravel()):
        return "has values that are not strings."
    return ""
