"""How generation runs a Transformer-XL whose positions are relative.

Shape letters used in this module: B rows of memory, R rows, T segment length,
M memory length, V vocabulary.
"""

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from txl_tf.generation.ragged_rows import common_length, padded, piece_length
from txl_tf.models.incremental_transformer_xl import IncrementalTransformerXL
from txl_tf.models.memory import Memory
from txl_tf.models.projected_memory import ProjectedMemory
from txl_tf.models.recent_memory import RecentMemory
from txl_tf.models.transformer_xl import TransformerXL


class IncrementalDecoder:
    """Memory is projected, and read only; new tokens are kept beside it.

    Args:
        model: `TransformerXL` with `"transformer_xl"` or `"shaw"` positions.
        memory_length: optional int. `M`, if not the model's. A model without
            recurrence remembers, while it writes, what is left of a segment.
        jit_compile: bool. Whether XLA compiles what runs for every token.

    Attributes:
        capacity: int. Tokens that are kept beside memory.
    """

    capacity = 64

    def __init__(
        self, model: TransformerXL, memory_length: int | None = None, *, jit_compile: bool = True
    ) -> None:
        config = model.config
        if memory_length is None:
            memory_length = config.memory_length if config.recurrence else config.segment_length - 1
        self.memory_length = memory_length
        self.jit_compile = jit_compile
        self._segment_length = config.segment_length
        self._incremental = IncrementalTransformerXL(model)
        self._read = tf.function(self._incremental.read, autograph=False)
        self._append = tf.function(self._incremental.append, autograph=False)

    def initial_memory(self, num_rows: int) -> ProjectedMemory:
        """Memory of rows that have read nothing."""
        return self._incremental.initial_memory(num_rows, self.memory_length)

    def adopt(self, memory: Any) -> ProjectedMemory:
        """Takes over the memory of a model, or of a generation before.

        Args:
            memory: `Memory` or `ProjectedMemory`.

        Returns:
            A `ProjectedMemory`.

        Raises:
            ValueError: If it is another kind or of another length.
        """
        if isinstance(memory, Memory):
            memory = self._incremental.project_memory(memory)
        if not isinstance(memory, ProjectedMemory):
            raise ValueError(
                "`memory` must be a `Memory` or a `ProjectedMemory`. "
                f"Received: memory of type {type(memory).__name__}"
            )
        if memory.keys[0].shape[3] != self.memory_length:
            raise ValueError(
                f"`memory` must be of length {self.memory_length}. "
                f"Received: a memory of length {memory.keys[0].shape[3]}"
            )
        return memory

    def read(self, rows: list[np.ndarray], memory: ProjectedMemory) -> ProjectedMemory:
        """Reads texts, which may end at different places.

        Args:
            rows: list of `B` int vectors, any of which may be empty.
            memory: `ProjectedMemory` of what came before.

        Returns:
            The next `ProjectedMemory`.
        """
        position_keys = functools.lru_cache(maxsize=1)(self._incremental.position_keys)
        while any(len(row) for row in rows):
            longest = max(len(row) for row in rows)
            length = piece_length(longest, self._segment_length)
            token_ids, lengths = padded(rows, length)
            memory = self._read(
                tf.constant(token_ids),
                tf.constant(common_length(lengths), tf.int32),
                memory,
                position_keys(self.memory_length + length),
            )
            rows = [row[length:] for row in rows]
        return memory

    def constants(self, num_rows: int) -> Any:
        """What `step` needs besides; depends on weights and sizes alone."""
        return self._incremental.constants(num_rows, self.memory_length)

    def begin(self, memory: ProjectedMemory, num_rows: int, capacity: int) -> RecentMemory:
        """Room for the tokens that are written next."""
        del memory
        return self._incremental.initial_recent(num_rows, capacity)

    def step(
        self,
        token_ids: tf.Tensor,
        is_active: tf.Tensor,
        memory: ProjectedMemory,
        recent: RecentMemory,
        constants: Any,
    ) -> tuple[tf.Tensor, RecentMemory]:
        """Reads one token per row, in a graph.

        Args:
            token_ids: int32 tensor `(R,)`.
            is_active: bool tensor `(R,)`. What other rows read is not kept;
                here `finish` leaves it out.
            memory: `ProjectedMemory` of `B` rows, `R / B` rows to each.
            recent: `RecentMemory` of `R` rows.
            constants: result of `constants(R)`.

        Returns:
            Tuple of log-probabilities `(R, V)` and the next `RecentMemory`.
        """
        del is_active
        return self._incremental.step(token_ids, memory, recent, constants)

    def select(self, recent: RecentMemory, rows: tf.Tensor) -> RecentMemory:
        """Puts rows in another order, in a graph."""
        return recent.select(rows)

    def finish(
        self, memory: ProjectedMemory, recent: RecentMemory, lengths: np.ndarray
    ) -> ProjectedMemory:
        """Memory with the tokens that were written.

        Args:
            memory: `ProjectedMemory` of `B` rows.
            recent: `RecentMemory` of as many.
            lengths: int array `(B,)`. Tokens of each row that count.

        Returns:
            The next `ProjectedMemory`.
        """
        return self._append(memory, recent, tf.constant(common_length(lengths), tf.int32))
