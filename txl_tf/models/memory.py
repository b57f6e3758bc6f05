"""Memory of a Transformer-XL and of a recurrent model, also as named tensors.

Shape letters used in this module: B rows, M memory length, D hidden width, L layers, W width of
one state.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from txl_tf import functional


def check_memory(memory: Any, memory_class: type, token_ids: Any) -> None:
    """Raises ValueError for memory of another class, or known to be of another batch."""
    if not isinstance(memory, memory_class):
        raise ValueError(
            f"`memory` must be a `{memory_class.__name__}`. "
            f"Received: memory of type {type(memory).__name__}"
        )
    num_rows, batch_size = keras.tree.flatten(memory)[0].shape[0], token_ids.shape[0]
    if None not in (num_rows, batch_size) and num_rows != batch_size:
        raise ValueError(
            "`memory` must have the rows of the batch. "
            f"Received: memory of {num_rows} rows, batch of {batch_size}"
        )


def short_repr(memory: Any) -> str:
    """Returns the `__repr__` of a memory: layers, shape of a layer's tensor, valid lengths."""
    tensors = tuple(memory[0])
    shape = tuple(getattr(tensors[0], "shape", ())) if tensors else ()
    lengths = getattr(memory, "valid_length", None)
    if hasattr(lengths, "numpy") or isinstance(lengths, np.ndarray):
        lengths = np.array2string(ops.convert_to_numpy(lengths), threshold=8)
    return f"{type(memory).__name__}(tensors={len(tensors)}, {shape=}, valid_length={lengths})"


class Memory(NamedTuple):
    """Hidden states that the next segment may attend to.

    Each row fills its memory from the right: the last `valid_length` of the
    `M` positions are filled, the others are never attended to.

    Attributes:
        states: tuple of `L` float tensors `(B, M, D)`: the last `M` inputs of
            every decoder block.
        valid_length: int32 tensor `(B,)`, between 0 and `M`.
    """

    states: tuple[Any, ...]
    valid_length: Any

    __repr__ = short_repr

    @classmethod
    def empty(
        cls, *, num_layers: int, batch_size: int, memory_length: int, hidden_dim: int, dtype: str
    ) -> "Memory":
        """Returns the memory of `B` rows that have read nothing: zeros, valid length 0."""
        shape = (batch_size, memory_length, hidden_dim)
        states = tuple(ops.zeros(shape, dtype=dtype) for _ in range(num_layers))
        return cls(states=states, valid_length=ops.zeros((batch_size,), dtype="int32"))

    def to_tensors(self) -> dict[str, Any]:
        """Returns all tensors by name, as a checkpoint stores them."""
        states = {f"states/{layer:03d}": state for layer, state in enumerate(self.states)}
        return {**states, "valid_length": self.valid_length}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Any]) -> "Memory":
        """Inverts `to_tensors`."""
        names = sorted(tensors.keys() - {"valid_length"})
        return cls(tuple(tensors[name] for name in names), tensors["valid_length"])

    def extended(self, inputs: Iterable[Any], lengths: Any) -> "Memory":
        """Returns the memory after new tokens; each row may keep only the first ones.

        Args:
            inputs: `L` float tensors `(B, T, D)`, the inputs of every block.
            lengths: int32 tensor `(B,)`: the number of first tokens of each row to keep; or a
                scalar, the same for all rows.
        """
        memory_length = self.states[0].shape[1]
        states = tuple(
            functional.last_positions(
                ops.concatenate([state, ops.cast(new, state.dtype)], axis=1),
                1,
                lengths,
                memory_length,
            )
            for state, new in zip(self.states, inputs, strict=True)
        )
        valid_length = functional.next_valid_length(self.valid_length, memory_length, lengths)
        return Memory(states, valid_length)

    def filled(self) -> "Memory":
        """Returns the memory with valid length `M`: every state counts, zeros too."""
        length = self.states[0].shape[1]
        return self._replace(valid_length=ops.full_like(self.valid_length, length))

    def forget(self, rows: Any) -> "Memory":
        """Returns the memory with valid length 0 where `rows`, bool `(B,)`, is true."""
        return self._replace(valid_length=ops.where(rows, 0, self.valid_length))


class RecurrentMemory(NamedTuple):
    """States of the recurrent layers at the end of the last segment.

    States of a row that has read nothing are zero, so no valid length is needed.

    Attributes:
        states: tuple of `2 * L` float tensors `(B, W)`: for every layer its output or input at
            the last position, then its cell state.
    """

    states: tuple[Any, ...]

    __repr__ = short_repr

    @classmethod
    def empty(
        cls, *, widths: tuple[tuple[int, int], ...], batch_size: int, dtype: str
    ) -> "RecurrentMemory":
        """Returns zeros: for every layer two states of these widths."""
        return cls(
            tuple(ops.zeros((batch_size, width), dtype=dtype) for pair in widths for width in pair)
        )

    def by_layer(self, num_layers: int) -> list[tuple[Any, Any]]:
        """Returns the two states of every layer, as constants.

        No gradient flows through them, which truncates back-propagation through time at the
        segment boundary.

        Args:
            num_layers: int. `L` of the model.

        Returns:
            List of `L` pairs of float tensors `(B, W)`.

        Raises:
            ValueError: If there are not two states for each of `num_layers`.
        """
        if len(self.states) != 2 * num_layers:
            raise ValueError(
                f"`memory` must have two states for each of {num_layers} layers. "
                f"Received: {len(self.states)} states"
            )
        constants = [ops.stop_gradient(state) for state in self.states]
        return list(zip(constants[::2], constants[1::2], strict=True))

    @classmethod
    def of_layers(cls, pairs: list[tuple[Any, Any]]) -> "RecurrentMemory":
        """Returns the memory for the next segment, without gradients.

        Args:
            pairs: list of `L` pairs of float tensors `(B, W)`.

        Returns:
            A `RecurrentMemory`.
        """
        return cls(tuple(ops.stop_gradient(state) for pair in pairs for state in pair))

    def to_tensors(self) -> dict[str, Any]:
        """Returns all tensors by name, as a checkpoint stores them."""
        return {f"states/{place:03d}": state for place, state in enumerate(self.states)}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Any]) -> "RecurrentMemory":
        """Inverts `to_tensors`."""
        return cls(tuple(tensors[name] for name in sorted(tensors)))

    def forget(self, rows: Any) -> "RecurrentMemory":
        """Returns the memory with zeros where `rows`, bool `(B,)`, is true."""
        rows = ops.expand_dims(rows, 1)  # [B, 1]
        return RecurrentMemory(
            tuple(ops.where(rows, ops.zeros_like(state), state) for state in self.states)
        )
