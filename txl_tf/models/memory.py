"""What a model remembers of the segments before.

Shape letters used in this module: B rows, M memory length, D hidden width,
L layers.
"""

from typing import Any, NamedTuple

from keras import ops


class Memory(NamedTuple):
    """The hidden states that the next segment may attend to.

    Each row fills its memory from the right: the last `valid_length` of the
    `M` positions are filled, the others are never attended to.

    Attributes:
        states: tuple of `L` float tensors `(B, M, D)`: the last `M` inputs of
            every decoder block.
        valid_length: int32 tensor `(B,)`, between 0 and `M`.
    """

    states: tuple[Any, ...]
    valid_length: Any

    @classmethod
    def empty(
        cls, *, num_layers: int, batch_size: int, memory_length: int, hidden_dim: int, dtype: str
    ) -> "Memory":
        """Memory of rows that have read nothing.

        Args:
            num_layers: int. `L`.
            batch_size: int. `B`.
            memory_length: int. `M`.
            hidden_dim: int. `D`.
            dtype: str. Dtype of the states.

        Returns:
            A `Memory` of zeros with valid length 0.
        """
        shape = (batch_size, memory_length, hidden_dim)
        states = tuple(ops.zeros(shape, dtype=dtype) for _ in range(num_layers))
        return cls(states=states, valid_length=ops.zeros((batch_size,), dtype="int32"))

    def to_tensors(self) -> dict[str, Any]:
        """All tensors by name, as a checkpoint stores them."""
        states = {f"states/{layer:03d}": state for layer, state in enumerate(self.states)}
        return {**states, "valid_length": self.valid_length}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Any]) -> "Memory":
        """The reverse of `to_tensors`."""
        names = sorted(tensors.keys() - {"valid_length"})
        return cls(tuple(tensors[name] for name in names), tensors["valid_length"])

    def forget(self, rows: Any) -> "Memory":
        """Empties the memory of some rows, whose streams start anew.

        Args:
            rows: bool tensor `(B,)`. True where the memory is to be forgotten.

        Returns:
            A `Memory` whose valid length is 0 in those rows.
        """
        return self._replace(valid_length=ops.where(rows, 0, self.valid_length))
