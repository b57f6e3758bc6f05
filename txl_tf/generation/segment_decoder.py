"""How generation runs a model whose memory cannot be projected.

Shape letters used in this module: B rows of memory, R rows, V vocabulary.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from txl_tf.models.transformer_xl import TransformerXL


class SegmentDecoder:
    """Calls the model with segments, as training does; slower, and always right.

    It is for absolute positions, which are part of what is remembered and
    differ with every token, and for recurrent models, which have no keys.

    Args:
        model: `TransformerXL` or `RecurrentLanguageModel`.
        memory_length: optional int. `M` of a `TransformerXL`, if not its own.

    Attributes:
        capacity: int. Tokens that are written between two calls of `finish`.

    Raises:
        ValueError: If `memory_length` is given for a recurrent model.
    """

    capacity = 64
    jit_compile = False

    def __init__(self, model: keras.Model, memory_length: int | None = None) -> None:
        if memory_length is not None and not isinstance(model, TransformerXL):
            raise ValueError(
                "The states of a recurrent model have no length. "
                f"Received: memory_length={memory_length}"
            )
        self._model = model
        self._memory_length = memory_length
        self._segment_length = model.config.segment_length
        self._read = tf.function(lambda ids, memory: model(ids, memory)[1], autograph=False)

    def initial_memory(self, num_rows: int) -> Any:
        """Memory of rows that have read nothing."""
        if self._memory_length is None:
            return self._model.initial_memory(num_rows)
        return self._model.initial_memory(num_rows, self._memory_length)

    def adopt(self, memory: Any) -> Any:
        """Takes over the memory of the model.

        Args:
            memory: `Memory` or `RecurrentMemory`.

        Returns:
            The same.

        Raises:
            ValueError: If it is another kind, or of another length.
        """
        expected = self.initial_memory(1)
        if not isinstance(memory, type(expected)):
            raise ValueError(
                f"`memory` must be a `{type(expected).__name__}`. "
                f"Received: memory of type {type(memory).__name__}"
            )
        shapes = [[each.shape[1:] for each in tf.nest.flatten(one)] for one in (memory, expected)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"`memory` must have the shapes {shapes[1]} behind its rows. Received: {shapes[0]}"
            )
        return memory

    def read(self, rows: list[np.ndarray], memory: Any) -> Any:
        """Reads texts, each row by itself if they differ in length.

        Args:
            rows: list of `B` int vectors, any of which may be empty.
            memory: memory of what came before.

        Returns:
            The next memory.
        """
        if len({len(row) for row in rows}) == 1:
            return self._read_even(np.stack(rows), memory)
        alone = [
            self._read_even(
                row[None], tf.nest.map_structure(lambda each, b=b: each[b : b + 1], memory)
            )
            for b, row in enumerate(rows)
        ]
        return tf.nest.map_structure(lambda *each: tf.concat(each, axis=0), *alone)

    def _read_even(self, token_ids: np.ndarray, memory: Any) -> Any:
        length = self._segment_length
        for start in range(0, token_ids.shape[1], length):
            piece = tf.constant(token_ids[:, start : start + length], tf.int32)
            memory = self._read(piece, memory)
        return memory

    def constants(self, num_rows: int) -> Any:
        """Nothing."""
        del num_rows
        return ()

    def begin(self, memory: Any, num_rows: int, capacity: int) -> Any:
        """The memory of each row, once for all rows that begin with it."""
        del capacity
        return tf.nest.map_structure(
            lambda each: tf.repeat(each, num_rows // each.shape[0], axis=0), memory
        )

    def step(
        self, token_ids: tf.Tensor, is_active: tf.Tensor, memory: Any, state: Any, constants: Any
    ) -> tuple[tf.Tensor, Any]:
        """Reads one token per row, in a graph.

        Args:
            token_ids: int32 tensor `(R,)`.
            is_active: bool tensor `(R,)`. Other rows keep what they have.
            memory: has no influence; `state` has all of it.
            state: memory of `R` rows.
            constants: has no influence.

        Returns:
            Tuple of log-probabilities `(R, V)` and the next `state`.
        """
        del memory, constants
        log_probs, read = self._model.log_probs(token_ids[:, None], state)

        def kept(new, old):
            return tf.where(tf.reshape(is_active, [-1] + [1] * (len(old.shape) - 1)), new, old)

        return log_probs[:, 0], tf.nest.map_structure(kept, read, state)

    def select(self, state: Any, rows: tf.Tensor) -> Any:
        """Puts rows in another order, in a graph."""
        return tf.nest.map_structure(lambda each: tf.gather(each, rows), state)

    def finish(self, memory: Any, state: Any, lengths: np.ndarray) -> Any:
        """Memory with the tokens that were written: `state`."""
        del memory, lengths
        return state
