"""Memory in variables, of a layer or of a whole model.

Shape letters used in this module: B rows, M memory length, D hidden width, L layers.
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops


class MemoryVariables:
    """Variables that hold hidden states and how much of them is filled.

    Layers do not track what is in here: whoever makes the variables decides
    whether they are weights.

    Args:
        shapes: mapping from names to the shapes `(B, M, D)` of states.
        dtype: str. Dtype of the states.
        create_variable: function of a shape, a dtype and a name that returns a
            variable of zeros.

    Attributes:
        variables: list of variables: the states, then the int32 valid length `(B,)`.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        dtype: str,
        create_variable: Callable[[tuple[int, ...], str, str], Any],
    ) -> None:
        self.variables = [create_variable(shape, dtype, name) for name, shape in shapes.items()]
        num_rows = next(iter(shapes.values()))[0]
        self.variables.append(create_variable((num_rows,), "int32", "valid_length"))

    @classmethod
    def of_layer(
        cls, layer: keras.Layer, shapes: Mapping[str, tuple[int, ...]], dtype: str
    ) -> "MemoryVariables":
        """Returns variables that are weights of a layer, saved with it and not trained."""

        def create(shape: tuple[int, ...], dtype: str, name: str) -> Any:
            # What was remembered is not rounded again when it is read.
            options = {"trainable": False, "autocast": False, "name": name}
            return layer.add_weight(shape=shape, dtype=dtype, initializer="zeros", **options)

        return cls(shapes, dtype, create)

    def read(self, num_rows: Any = None) -> list[Any]:
        """Returns the memory of the first rows, as it is now.

        Args:
            num_rows: optional int or int tensor, at most `B`; all rows if it is
                not given.

        Returns:
            List of a tensor for each variable.
        """
        # A copy, for a variable that is assigned to later may be read later too.
        tensors = [ops.copy(variable) for variable in self.variables]
        return tensors if num_rows is None else [tensor[:num_rows] for tensor in tensors]

    def write(self, *tensors: Any, num_rows: Any = None) -> None:
        """Replaces the memory of the first rows; the others keep theirs.

        Args:
            *tensors: a tensor of `num_rows` rows for each variable.
            num_rows: as in `read`.
        """
        for variable, tensor in zip(self.variables, tensors, strict=True):
            if num_rows is not None:
                kept = ops.convert_to_tensor(variable)[num_rows:]
                # The compiler cannot know that the rows add up.
                tensor = ops.reshape(ops.concatenate([tensor, kept], axis=0), variable.shape)
            variable.assign(tensor)

    def reset(self) -> None:
        """Forgets what all rows have read."""
        for variable in self.variables:
            variable.assign(ops.zeros(variable.shape, variable.dtype))
