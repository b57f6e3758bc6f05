"""Memory of a model: hidden states, or keys and values while weights do not change.

Shape letters used in this module: B rows, T segment length, M memory length, D hidden width, L
layers, N heads, H head width, P places of a kernel's memory.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, Self

import keras
import numpy as np
from keras import ops

from txl_tf import functional
from txl_tf.layers.attention.projections import KeysAndValues
from txl_tf.layers.visible_keys import VisibleKeys


def check_memory(memory: Any, memory_class: type, token_ids: Any) -> None:
    """Raises ValueError for another class, or a number of rows known to differ."""
    if not isinstance(memory, memory_class):
        raise ValueError(
            f"`memory` must be a `{memory_class.__name__}`. "
            f"Received: memory of type {type(memory).__name__}"
        )
    num_rows, batch_size = keras.tree.flatten(memory)[0].shape[0], token_ids.shape[0]
    if None not in (num_rows, batch_size) and num_rows != batch_size:
        raise ValueError(
            "`memory` must have as many rows as the batch. "
            f"Received: memory of {num_rows} rows, batch of {batch_size}"
        )


def _repr(memory: Any) -> str:
    """Shows the number of tensors, the shape of one, and the valid lengths."""
    tensors, lengths = tuple(memory[0]), memory.valid_length
    shape = tuple(getattr(tensors[0], "shape", ())) if tensors else ()
    if hasattr(lengths, "numpy") or isinstance(lengths, np.ndarray):
        lengths = np.array2string(ops.convert_to_numpy(lengths), threshold=8)
    return f"{type(memory).__name__}(tensors={len(tensors)}, {shape=}, valid_length={lengths})"


def _forget(memory: Any, rows: Any) -> Any:
    """Returns the memory with valid length 0 where `rows`, bool `(B,)`, is true."""
    return memory._replace(valid_length=ops.where(rows, 0, memory.valid_length))


class Memory(NamedTuple):
    """Hidden states that the next segment may attend to.

    Each row fills its memory from the right: the last `valid_length` of the
    `M` positions are filled, the others are never read.

    Attributes:
        states: tuple of `L` float tensors `(B, M, D)`: the last `M` inputs of
            every decoder block. In a recurrent model two per layer, with `M = 1`: the last
            output (LSTM) or input (QRNN), and the cell state.
        valid_length: int32 tensor `(B,)`, between 0 and `M`.
    """

    states: tuple[Any, ...]
    valid_length: Any

    __repr__ = _repr
    forget = _forget

    @property
    def memory_length(self) -> int:
        """Memory length `M`."""
        return self.states[0].shape[1]

    def of_layer(self, layer: int) -> dict[str, Any]:
        """Returns the arguments of a `DecoderBlock` for the memory of one layer."""
        return {"memory": self.states[layer]}

    def advanced(self, inputs: list[Any], kept: list[Any], visible: VisibleKeys) -> Self:
        """Returns the next memory from the inputs `(B, T, D)` of every block."""
        return Memory(self._next_states(inputs, visible.lengths), visible.next_valid_length())

    def extended(self, inputs: Iterable[Any], lengths: Any) -> Self:
        """Returns the memory with the first `lengths` new tokens.

        `inputs` are `L` float tensors `(B, T, D)`, the inputs of every block; `lengths` int32
        `(B,)`, or a scalar, the same for all rows.
        """
        valid_length = functional.next_valid_length(self.valid_length, self.memory_length, lengths)
        return Memory(self._next_states(inputs, lengths), valid_length)

    def _next_states(self, inputs: Iterable[Any], lengths: Any) -> tuple[Any, ...]:
        pairs = zip(self.states, inputs, strict=True)
        return tuple(functional.next_memory(state, new, lengths) for state, new in pairs)


class KeyValueMemory(NamedTuple):
    """Keys and values that the next segment may attend to.

    While the weights do not change, attention layers would compute the same keys and values from
    a `Memory` in every segment. Each row fills its memory from the right. For the kernel for TPUs
    both are `(B, P, N * H)`: the heads side by side, and `P` places, the first of them unused.

    Attributes:
        keys: tuple of `L` float tensors `(B, N, H, M)`, transposed for matmul. In the form that
            `inference.stacked_steps` reads, one tensor has all layers.
        values: tuple of `L` float tensors `(B, N, M, H)`, or one tensor as `keys`.
        valid_length: int32 tensor `(B,)`, between 0 and `M`.
    """

    keys: tuple[Any, ...]
    values: tuple[Any, ...]
    valid_length: Any

    __repr__ = _repr
    forget = _forget

    @property
    def memory_length(self) -> int:
        """Memory length `M`, or the number of places `P`."""
        return self.values[0].shape[-2]

    def of_layer(self, layer: int) -> dict[str, Any]:
        """Returns the arguments of a `DecoderBlock` for the memory of one layer."""
        return {"kept": KeysAndValues(self.keys[layer], self.values[layer])}

    def advanced(self, inputs: list[Any], kept: list[Any], visible: VisibleKeys) -> Self:
        """Returns the next memory from the next `KeysAndValues` of every block."""
        return KeyValueMemory(*zip(*kept, strict=True), visible.next_valid_length())


class MemoryBesideRecent(NamedTuple):
    """Memory that is only read, and the tokens that were read one at a time since.

    Attributes:
        memory: `KeyValueMemory` of `B` rows, each shared by some rows of `recent`.
        recent: `KeyValueMemory` of `R` rows with `C` places, which fill from the left. Its valid
            length is a number, the same for all rows.
    """

    memory: KeyValueMemory
    recent: KeyValueMemory

    @property
    def valid_length(self) -> Any:
        """Filled places of memory, int32 `(B,)`; recent tokens do not count."""
        return self.memory.valid_length

    def of_layer(self, layer: int) -> dict[str, Any]:
        """Returns the arguments of a `DecoderBlock` for the memory of one layer."""
        return {"kept": tuple(each.of_layer(layer)["kept"] for each in self)}

    def advanced(self, inputs: list[Any], kept: list[Any], visible: VisibleKeys) -> Self:
        """Returns the same memory beside one more recent token."""
        recent = KeyValueMemory(*zip(*kept, strict=True), self.recent.valid_length + 1)
        return self._replace(recent=recent)
