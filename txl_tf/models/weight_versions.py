"""Values computed from weights, which are computed again when a weight has changed."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from txl_tf.imports import tensorflow as tf


class WeightVersion:
    """Version of the weights of a model: their values when it was last looked at.

    It notices every change, also by a program of TensorFlow, such as a step of `fit`. Keras has no
    counter for that. The values are kept, not copied: a program that changes a weight then writes
    to other memory, so an address tells the version.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._variables: list[Any] = []
        self._values: list[Any] = []
        self._read = _reader([])

    @property
    def has_new_variables(self) -> bool:
        """True if layers have other variables than before, as after `quantize`."""
        variables = self._model.weights
        return len(variables) != len(self._variables) or any(
            new is not old for new, old in zip(variables, self._variables, strict=True)
        )

    def has_changed(self) -> bool:
        """Returns true if a weight differs from that of the last call, or there was no call."""
        if self.has_new_variables:
            self._variables, self._values = self._model.weights, []
            self._read = _reader(self._variables)
        before, self._values = self._values, self._read()
        return not _are_same(before, self._values)


def _reader(variables: Sequence[Any]) -> Callable[[], list[Any]]:
    """Returns a function that reads the values of variables without copying them."""
    if keras.backend.backend() == "tensorflow":
        # One call: reading them one by one takes five times as long.
        return tf.function(lambda: [each.value.read_value() for each in variables], autograph=False)
    return lambda: [each.value for each in variables]


def _are_same(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """True if no value has changed, judged by addresses where values are in host memory."""
    if len(before) != len(after):
        return False
    if all(old is new for old, new in zip(before, after, strict=True)):
        return True
    if keras.backend.backend() == "jax":
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

    The arguments must be hashable. A result is computed again if they differ from those of the
    last call, or if a weight has changed.
    """

    def __init__(self, function: Callable[..., Any], model: keras.Model) -> None:
        self._function = function
        self._version = WeightVersion(model)
        # Only the newest: the keys of all distances take memory.
        self._arguments: tuple[Any, ...] | None = None
        self._result: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Returns the result for the weights as they are."""
        if self._version.has_changed() or arguments != self._arguments:
            self._result, self._arguments = self._function(*arguments), arguments
        return self._result
