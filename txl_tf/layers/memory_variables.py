"""Variables of a memory that a layer or a model keeps itself, by rows of a batch."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from txl_tf.imports import tensorflow as tf


def create_state(shapes: Sequence[tuple[int, ...]], dtype: str) -> list[Any]:
    """Creates variables for remembered states; the last one is their int32 valid length `(B,)`.

    They depend on the batch size and begin empty, so they are not weights. A layer hides them from
    Keras' tracking, so that they are neither saved nor loaded. It lists them in `variables`,
    because a step on JAX only changes variables listed there. `DataParallel` divides them by row,
    as it does the batches.
    """

    def create(shape: tuple[int, ...], dtype: str) -> Any:
        # Without autocast, reading does not round the states again.
        options: dict[str, Any] = {"trainable": False, "autocast": False}
        parallel = keras.distribution.distribution()
        is_divided = isinstance(parallel, keras.distribution.DataParallel)
        if is_divided and shape[0] % parallel.device_mesh.shape[0] == 0:
            options["layout"] = parallel.get_data_layout(shape)
        return keras.Variable("zeros", shape, dtype, **options)

    return [*(create(shape, dtype) for shape in shapes), create(shapes[0][:1], "int32")]


def check_num_rows(num_rows: int | None, most: int) -> None:
    """Raises ValueError for a batch that is known to have more rows than a memory."""
    if num_rows is not None and num_rows > most:
        raise ValueError(
            f"A batch must have at most {most} rows, as the memory has. "
            f"Received: a batch of {num_rows}"
        )


def rows_of_state(variables: Sequence[Any], inputs: Any) -> Any:
    """Returns `None` for a batch of all rows, or how many it has; ValueError for more."""
    num_rows, most = inputs.shape[0], variables[-1].shape[0]
    check_num_rows(num_rows, most)
    return None if num_rows == most else ops.shape(inputs)[0]


def check_state_is_trained(training: Any, inputs: Any) -> None:
    """Raises ValueError where a program of TensorFlow would read a memory of training otherwise."""
    is_program = keras.backend.backend() == "tensorflow" and not tf.executing_eagerly()
    if (is_program or isinstance(inputs, keras.KerasTensor)) and not training:
        raise ValueError(
            "`evaluate`, `predict` and compiled functions must not continue the memory of "
            "training, which they would overwrite. Evaluate with a `StatefulTransformerXL` itself, "
            "not as a part of a model, or call the model eagerly after `reset_state`. "
            f"Received: training={training}"
        )


def read_state(variables: Sequence[Any], num_rows: Any = None) -> list[Any]:
    """Returns a tensor for each variable, of the first `num_rows` rows if given."""
    # Copied, because a variable may be assigned before its value is used.
    tensors = [ops.copy(variable) for variable in variables]
    return tensors if num_rows is None else [tensor[:num_rows] for tensor in tensors]


def write_state(variables: Sequence[Any], tensors: Sequence[Any], num_rows: Any = None) -> None:
    """Replaces the state of all rows, or of the first `num_rows` rows only."""
    for variable, tensor in zip(variables, tensors, strict=True):
        if num_rows is not None:
            kept = ops.convert_to_tensor(variable)[num_rows:]
            # The compiler cannot infer the number of rows after concatenation.
            tensor = ops.reshape(ops.concatenate([tensor, kept], axis=0), variable.shape)
        variable.assign(tensor)


def clear_state(variables: Sequence[Any]) -> None:
    """Empties the memory of all rows."""
    for variable in variables:
        variable.assign(ops.zeros(variable.shape, variable.dtype))
