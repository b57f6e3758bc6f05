"""Weights as an export stores them: float32, bfloat16 or int8 with scales."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

# Biases and norms are a thousandth of the weights, and each matters more.
_MIN_MATRIX_ELEMENTS = 4096
# A scale takes as many bytes as four int8 numbers.
_MIN_NUMBERS_PER_SCALE = 32
_LARGEST_INT8 = 127


class ServedWeights(tf.Module):
    """Weights of a model as an export stores them, optionally in fewer bits.

    In int8 a matrix has one scale per row or one per column, whichever loses less; a weight is
    the scale times a number in [-127, 127]. `values` are always float32.
    """

    def __init__(self, variables: list[keras.Variable], stored_as: str) -> None:
        super().__init__(name="weights")
        # By path, which is their name in the SavedModel too.
        self._numbers: dict[str, tf.Variable] = {}
        self._scales: dict[str, tf.Variable] = {}
        for variable in variables:
            array = np.asarray(variable.numpy(), np.float32)
            numbers, scale = _stored(array, stored_as)
            name = variable.path.replace("/", ".")
            self._numbers[variable.path] = tf.Variable(numbers, trainable=False, name=name)
            if scale is not None:
                named = f"{name}.scale"
                self._scales[variable.path] = tf.Variable(scale, trainable=False, name=named)

    @property
    def num_bytes(self) -> int:
        """Bytes of all stored tensors."""
        stored = [*self._numbers.values(), *self._scales.values()]
        return sum(each.shape.num_elements() * each.dtype.size for each in stored)

    def values(self) -> list[tf.Tensor]:
        """Returns the weights, float32, in the order of `variables`."""
        return [
            tf.cast(numbers, tf.float32) * self._scales.get(path, 1.0)
            if numbers.dtype != tf.float32
            else numbers.read_value()
            for path, numbers in self._numbers.items()
        ]


def _stored(array: np.ndarray, stored_as: str) -> tuple[Any, np.ndarray | None]:
    if array.ndim != 2 or array.size < _MIN_MATRIX_ELEMENTS or stored_as == "float32":
        return array, None
    if stored_as == "bfloat16":
        return tf.cast(array, tf.bfloat16), None
    # Scales along a short axis would be nearly as many as its numbers.
    axes = [axis for axis in (0, 1) if array.shape[axis] >= _MIN_NUMBERS_PER_SCALE]
    if not axes:
        return array, None
    choices = [_quantized(array, axis) for axis in axes]
    return min(choices, key=lambda choice: np.square(choice[0] * choice[1] - array).sum())


def _quantized(array: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    scale = np.abs(array).max(axis=axis, keepdims=True) / _LARGEST_INT8
    scale = np.where(scale == 0, 1.0, scale).astype(np.float32)
    return np.round(array / scale).astype(np.int8), scale
