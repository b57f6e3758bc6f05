"""Variables of a memory that a layer or a model keeps itself, by rows of a batch."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from txl_tf.imports import tensorflow as tf


class MemoryVariables:
    """Variables for the remembered states of all rows, and for the rows' valid lengths.

    They depend on the batch size and begin empty, so they are not weights. Keras tracks no
    attributes of this class, so it neither saves nor loads the variables. A layer lists them in its
    `variables`, because a step on JAX only changes variables listed there. `DataParallel` divides
    them by row, as it does the batches.

    A batch with fewer rows than the memory reads and changes only the first rows.

    Args:
        shapes: shapes of the states, each with all rows first.
        dtype: str. Dtype of the states.

    Attributes:
        variables: list of a variable for each state, then one int32 `(B,)` of the valid lengths.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], dtype: str) -> None:
        self.variables = [_create_variable(shape, dtype) for shape in shapes]
        self.variables.append(_create_variable(shapes[0][:1], "int32"))

    def rows_of(self, inputs: Any) -> Any:
        """Returns the number of rows of a batch, `None` for all rows; ValueError for more."""
        num_rows, most = inputs.shape[0], self.variables[-1].shape[0]
        check_num_rows(num_rows, most)
        return None if num_rows == most else ops.shape(inputs)[0]

    def read(self, num_rows: Any = None) -> list[Any]:
        """Returns a tensor for each variable, of the first `num_rows` rows or of all."""
        # Copied, because a variable may be assigned before its value is used.
        tensors = [ops.copy(variable) for variable in self.variables]
        return tensors if num_rows is None else [tensor[:num_rows] for tensor in tensors]

    def write(self, tensors: Sequence[Any], num_rows: Any = None) -> None:
        """Replaces the state of the first `num_rows` rows or of all."""
        for variable, tensor in zip(self.variables, tensors, strict=True):
            if num_rows is not None:
                other_rows = ops.convert_to_tensor(variable)[num_rows:]
                # The compiler cannot infer the number of rows after concatenation.
                tensor = ops.reshape(ops.concatenate([tensor, other_rows], axis=0), variable.shape)
            variable.assign(tensor)

    def clear(self) -> None:
        """Empties the memory of all rows."""
        for variable in self.variables:
            variable.assign(ops.zeros(variable.shape, variable.dtype))


def _create_variable(shape: tuple[int, ...], dtype: str) -> Any:
    # Without autocast, reading does not round the states again.
    options: dict[str, Any] = {"trainable": False, "autocast": False}
    parallel = keras.distribution.distribution()
    is_divided = isinstance(parallel, keras.distribution.DataParallel)
    if is_divided and shape[0] % parallel.device_mesh.shape[0] == 0:
        options["layout"] = parallel.get_data_layout(shape)
    return keras.Variable("zeros", shape, dtype, **options)


def check_num_rows(num_rows: int | None, most: int) -> None:
    """Raises ValueError for a batch that is known to have more rows than a memory."""
    if num_rows is not None and num_rows > most:
        raise ValueError(
            f"A batch must have at most {most} rows, as the memory has. "
            f"Received: a batch of {num_rows}"
        )


def check_state_is_trained(training: Any, inputs: Any) -> None:
    """Raises ValueError in a program of TensorFlow that continues this memory without training."""
    is_program = keras.backend.backend() == "tensorflow" and not tf.executing_eagerly()
    if (is_program or isinstance(inputs, keras.KerasTensor)) and not training:
        raise ValueError(
            "`evaluate`, `predict` and compiled functions must not continue the memory of "
            "training, which they would overwrite. Evaluate with a `StatefulTransformerXL` itself, "
            "not as a part of a model, or call the model eagerly after `reset_state`. "
            f"Received: training={training}"
        )
