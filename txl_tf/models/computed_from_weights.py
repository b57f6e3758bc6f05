"""Values computed from weights, which are computed again when a weight has changed."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from txl_tf.imports import is_on_jax, tensorflow as tf
from txl_tf.layers.compiled_parts import exact_products_on_jax


def same_variables(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """True for the same variables, whatever their values, in the same order."""
    return list(map(id, one)) == list(map(id, other))


class _Weights:
    """Weights of a model, and the function that reads their values without copying them."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = list(variables)
        self.read: Callable[[], list[Any]] = lambda: [each.value for each in self.variables]
        if keras.backend.backend() == "tensorflow":
            # One call: reading them one by one takes five times as long.
            self.read = tf.function(
                lambda: [each.value.read_value() for each in self.variables], autograph=False
            )


_WEIGHTS: weakref.WeakKeyDictionary[keras.Model, _Weights] = weakref.WeakKeyDictionary()


def _weights_of(model: keras.Model) -> _Weights:
    """Returns the weights that a model has now; layers have others after `quantize`."""
    variables, weights = model.weights, _WEIGHTS.get(model)
    if weights is None or not same_variables(variables, weights.variables):
        weights = _WEIGHTS[model] = _Weights(variables)
    return weights


def _are_same(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """True if no value has changed, judged by addresses where values are in host memory."""
    if all(old is new for old, new in zip(before, after, strict=True)):
        return True
    if is_on_jax():
        return False  # arrays never change
    try:
        return list(map(_address, before)) == list(map(_address, after))
    except (AttributeError, BufferError, TypeError, ValueError):
        pairs = zip(before, after, strict=True)
        return bool(ops.all(ops.stack([ops.all(ops.equal(*pair)) for pair in pairs])))


def _address(tensor: Any) -> int:
    """Returns the address of a tensor of TensorFlow; ValueError if it is not in host memory."""
    if "CPU" not in tensor.device:
        raise ValueError(f"Only tensors of the host have an address. Received: {tensor.device}")
    return np.asarray(memoryview(tensor)).ctypes.data


class ComputedFromWeights:
    """Function of the weights of a model that remembers its last result.

    A result is computed again if the arguments differ from the last call, or if a weight has
    changed, also by a program of TensorFlow, such as a step of `fit`. Keras has no counter for
    that. So the values are kept, not copied: a program that changes a weight then writes to other
    memory, and an address tells the change.
    """

    def __init__(self, function: Callable[..., Any], model: keras.Model) -> None:
        self._function = function
        self._model = model
        self._weights: _Weights | None = None
        self._values: list[Any] = []
        # Only the newest: the keys of all distances take memory.
        self._arguments: tuple[Any, ...] | None = None
        self._result: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Returns the result for the weights as they are."""
        weights = _weights_of(self._model)
        values = weights.read()
        has_changed = weights is not self._weights or not _are_same(self._values, values)
        self._weights, self._values = weights, values
        if has_changed or arguments != self._arguments:
            with exact_products_on_jax():
                self._result, self._arguments = self._function(*arguments), arguments
        return self._result
