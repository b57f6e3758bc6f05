"""Base class of models that Keras' own loops train and evaluate, and the checks of their batches.

Shape letters used in this module: B rows, T positions of a row that have a loss.
"""

import copy
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras import ops

from txl_tf.imports import tensorflow as tf


class ModelWithLoss(keras.Model):
    """Base class of models whose `compile` uses `default_loss` by default.

    The subclass defines `default_loss` and `check_ids`, which raises ValueError for inputs and
    targets of a batch with wrong ids.

    Attributes:
        outputs_logits: bool. True if losses and metrics must take logits.
        has_loss_per_position: bool. True if losses are `(B, T)`, so that a weight `(B,)` must be
            repeated for all positions.
    """

    outputs_logits = True
    has_loss_per_position = False

    def compile(self, optimizer="rmsprop", loss=None, *args, **kwargs):
        loss = self.default_loss() if loss is None else loss
        functions = [loss, kwargs.get("metrics"), kwargs.get("weighted_metrics")]
        for function in keras.tree.flatten(functions):
            if self.outputs_logits and _takes_probabilities(function):
                raise ValueError(
                    "Losses and metrics must take logits, such as "
                    "`keras.losses.SparseCategoricalCrossentropy(from_logits=True)`. "
                    f"Received: {function}"
                )
        # Private: Keras 3.15 names the variables of an optimizer nowhere else.
        variables = getattr(optimizer, "_trainable_variables", None) or self.trainable_variables
        if not set(map(id, self.trainable_variables)) <= set(map(id, variables)):
            raise ValueError(
                "The optimizer was built without some variables that the model trains now. "
                "Create a new one; for the model of `txl_tf.load`, call `lm.compile()` again. "
                f"Received: optimizer={optimizer}"
            )
        super().compile(optimizer, loss, *args, **kwargs)

    def compile_from_config(self, config):
        # Keras' own method refuses models that override `compile`.
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def fit(self, x=None, y=None, *args, validation_data=None, **kwargs):
        if validation_data is not None:
            kwargs["validation_data"] = self._check_data(validation_data)
        return super().fit(self._check_data(x, y), y, *args, **kwargs)

    def evaluate(self, x=None, y=None, *args, **kwargs):
        return super().evaluate(self._check_data(x, y), y, *args, **kwargs)

    def predict(self, x, *args, **kwargs):
        return super().predict(self._check_data(x), *args, **kwargs)

    def train_on_batch(self, x, y=None, *args, **kwargs):
        return super().train_on_batch(self._check_data(x, y), y, *args, **kwargs)

    def test_on_batch(self, x, y=None, *args, **kwargs):
        return super().test_on_batch(self._check_data(x, y), y, *args, **kwargs)

    def predict_on_batch(self, x):
        return super().predict_on_batch(self._check_data(x))

    def train_step(self, *state_and_data):
        return self._run_step("fit", super().train_step, *state_and_data)

    def test_step(self, *state_and_data):
        return self._run_step("evaluate", super().test_step, *state_and_data)

    def predict_step(self, *state_and_data):
        return self._run_step("predict", super().predict_step, *state_and_data)

    def _check_data(self, x, y=None):
        if y is None:
            return checked_batches(x, self.check_ids)
        self.check_ids(x, y)
        return x

    def _run_step(self, use, step, *state_and_data):
        *state, data = state_and_data
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        if weight is not None and self.has_loss_per_position:
            # Keras would take weights `(B,)` for weights of positions where `B` is `T`.
            shape = ops.shape(y)[:2]
            weight = ops.reshape(weight, (shape[0], -1))
            data = x, y, ops.broadcast_to(weight, shape)
        if keras.backend.backend() != "tensorflow" or self.jit_compile:
            return step(*state, data)
        # Where data of unknown length ends, Keras 3.15 runs one more step, without data. The parts
        # that do not depend on data would then change the loss, the optimizer and the memory.
        tensors = [each for each in keras.tree.flatten(data) if isinstance(each, tf.Tensor)]
        with tf.control_dependencies(tensors):
            return step(*state, data)


def _takes_probabilities(function: Any) -> bool:
    """True if a loss or metric, or the one of a name, could take logits but takes probabilities."""
    if isinstance(function, str):
        for module in (keras.losses, keras.metrics):
            try:
                return _takes_probabilities(module.get(function))
            except ValueError:
                continue
        return function in ("crossentropy", "ce")
    if isinstance(function, keras.losses.Loss | keras.metrics.Metric):
        return function.get_config().get("from_logits") is False
    parameters = inspect.signature(function).parameters if callable(function) else {}
    return "from_logits" in parameters and parameters["from_logits"].default is False


def checked_batches(data: Any, check: Callable[..., None]) -> Any:
    """Returns data for Keras' loops; `check` sees the inputs and targets of each batch.

    They are checked on the host before the batch is used, as a compiled step cannot refuse it.
    """
    if isinstance(data, keras.utils.PyDataset):
        return _checked_dataset(data, check)
    if isinstance(data, Iterator):
        return (batch for batch in data if check(*_inputs_and_targets(batch)) is None)
    if not hasattr(data, "element_spec"):
        check(*(_inputs_and_targets(data) if isinstance(data, tuple) else (data, None)))
        return data

    @tf.autograph.experimental.do_not_convert
    def check_batch(*parts: Any) -> Any:
        batch = parts if isinstance(data.element_spec, tuple) else parts[0]
        tensors = keras.tree.flatten(batch)

        def check_arrays(*arrays: Any) -> None:
            check(*_inputs_and_targets(keras.tree.pack_sequence_as(batch, arrays)))

        with tf.control_dependencies([tf.numpy_function(check_arrays, tensors, [])]):
            return tf.nest.map_structure(tf.identity, batch)

    return data.map(check_batch)


def _checked_dataset(dataset: keras.utils.PyDataset, check: Callable[..., None]) -> Any:
    class CheckedDataset(type(dataset)):  # type: ignore[misc]
        def __getitem__(self, index: int) -> Any:
            batch = super().__getitem__(index)
            check(*_inputs_and_targets(batch))
            return batch

    copied_dataset = copy.copy(dataset)
    copied_dataset.__class__, copied_dataset.__dict__ = CheckedDataset, dataset.__dict__
    return copied_dataset


def _inputs_and_targets(data: Any) -> tuple[Any, Any]:
    return keras.utils.unpack_x_y_sample_weight(data)[:2]
