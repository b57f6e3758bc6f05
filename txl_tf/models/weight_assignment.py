"""Gives a model its weights, if they are all there and fit."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from txl_tf.errors import MismatchError


def assign_weights(variables: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Assigns an array to every variable; nothing is changed if one does not fit.

    Args:
        variables: mapping of name to `keras.Variable`.
        arrays: mapping of name to array; others may be among them.

    Raises:
        MismatchError: If an array is missing, or of another shape or kind.
    """
    for name, variable in variables.items():
        array, shape = arrays.get(name), tuple(variable.shape)
        if array is None:
            raise _mismatch(name, "is missing")
        # NumPy does not count bfloat16 among its own floats.
        if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
            raise _mismatch(name, f"is of type {array.dtype.name}")
        if array.shape != shape:
            raise _mismatch(name, f"has the shape {list(array.shape)}, not {list(shape)}")
    for name, variable in variables.items():
        variable.assign(arrays[name])


def _mismatch(name: str, what: str) -> MismatchError:
    return MismatchError(
        f"The weights are not those of the model: `{name}` {what}.",
        where="checkpoint",
        remedy="Use the version of txl-tf that wrote it, or restore it from a copy.",
    )
