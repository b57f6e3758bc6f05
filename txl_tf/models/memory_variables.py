"""A memory that is kept in variables from one batch to the next.

Shape letters used in this module: B rows, M memory length, D hidden width,
L layers.
"""

from collections.abc import Callable
from typing import Any

from keras import ops

from txl_tf.models.memory import Memory


class MemoryVariables:
    """Variables that hold a `Memory`.

    Layers do not track what is in here: whoever makes the variables decides
    whether they are weights.

    Args:
        empty: `Memory` of `B` rows that have read nothing.
        create_variable: function of a tensor and a name that returns a variable
            of zeros with the tensor's shape and dtype.

    Attributes:
        variables: list of `L + 1` variables: the states of every layer, then
            the valid length.
    """

    def __init__(self, empty: Memory, create_variable: Callable[[Any, str], Any]) -> None:
        self.variables = [
            create_variable(state, f"memory_{layer}") for layer, state in enumerate(empty.states)
        ]
        self.variables.append(create_variable(empty.valid_length, "valid_length"))

    def read(self, num_rows: Any = None) -> Memory:
        """The memory of the first rows, as it is now.

        Args:
            num_rows: optional int or int tensor, at most `B`; all rows if it is
                not given.

        Returns:
            A `Memory`.
        """
        tensors = [ops.copy(variable) for variable in self.variables]
        if num_rows is not None:
            tensors = [tensor[:num_rows] for tensor in tensors]
        return Memory(tuple(tensors[:-1]), tensors[-1])

    def write(self, memory: Memory, num_rows: Any = None) -> None:
        """Replaces the memory of the first rows; the others keep theirs.

        Args:
            memory: `Memory` of `num_rows` rows.
            num_rows: as in `read`.
        """
        for variable, tensor in zip(
            self.variables, (*memory.states, memory.valid_length), strict=True
        ):
            if num_rows is not None:
                kept = ops.convert_to_tensor(variable)[num_rows:]
                # The compiler cannot know that the rows add up.
                tensor = ops.reshape(ops.concatenate([tensor, kept], axis=0), variable.shape)
            variable.assign(tensor)

    def reset(self) -> None:
        """Forgets what all rows have read."""
        for variable in self.variables:
            variable.assign(ops.zeros(variable.shape, variable.dtype))
