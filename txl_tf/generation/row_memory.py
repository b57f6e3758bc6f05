"""Memory of the rows of a generation session.

Shape letters used in this module: B rows, G rows of a group, T tokens of a row.
"""

import copy
from collections.abc import Sequence
from typing import Any, Self

import keras
import numpy as np

from txl_tf.inference.engine import InferenceEngine
from txl_tf.inference.segment_reader import SegmentReader, common_length, joined_rows
from txl_tf.layers.compiled_parts import compiled


class RowMemory:
    """Memory of `B` rows of text, and the newest tokens of each row, which it does not hold yet.

    The text of a row is the tokens in memory, then its unread tokens. Its last token always stays
    unread, because the model reads it to write the next one. Tokens enter memory in two ways:

    - `append` adds tokens to the unread ones, and `read` then reads all of these but the last.
    - `add_steps` takes tokens that were written and read beside memory, in a step state.

    Memory has the form that steps read, see `inference.steps.Steps`. It is kept as groups of `G`
    rows, `G = B` or 1. Rounded memory takes half the space of the memory that segments read, so
    `read` converts the rows one by one. `joined` makes one group of all rows.

    A shallow copy is a copy of the state: methods replace lists and tensors and do not change them.

    Args:
        engine: `InferenceEngine` that writes.
        num_rows: int. `B`.
        memory: optional memory of the engine's model, or of the engine, of the text before.
    """

    def __init__(self, engine: InferenceEngine, num_rows: int, memory: Any = None) -> None:
        steps, rounds = engine.steps, engine.plan.rounds_steps
        self._engine = engine
        self._num_rows = num_rows
        self._group_size = 1 if rounds else num_rows
        self._reader = SegmentReader(engine)
        # Rounded numbers are compiled: XLA keeps no exact numbers between the operations.
        self._finish, self._memory_of_steps, self._memory_after_steps = (
            compiled(each, engine.model, rounds)
            for each in (steps.finish, steps.memory_of_steps, steps.memory_after_steps)
        )
        self._clear(memory)

    def _clear(self, memory: Any = None) -> None:
        group_size = self._group_size if memory is None else self._num_rows
        memory = self._engine.initial_memory(group_size) if memory is None else memory
        group = self._memory_of_steps(self._engine.adopt(memory))
        # All groups share one empty memory until they have read.
        self._groups = [group] * (self._num_rows // group_size)
        self._unread = [np.zeros(0, np.int32)] * self._num_rows

    def cleared(self) -> Self:
        """Returns empty rows that share the compiled functions."""
        rows = copy.copy(self)
        rows._clear()
        return rows

    @property
    def is_unstarted(self) -> bool:
        """True if no token was appended yet, so no text can be continued."""
        return not all(map(len, self._unread))

    @property
    def newest_token_ids(self) -> list[int]:
        """The last token of each row."""
        return [row[-1] for row in self._unread]

    @property
    def memory(self) -> Any:
        """Memory of all rows in the form that segments read."""
        return self._memory_after_steps(self.joined())

    def joined(self) -> Any:
        """Returns memory of all rows in the form that steps read."""
        if len(self._groups) > 1:
            self._groups = [joined_rows(self._groups)]
        return self._groups[0]

    def append(self, rows: Sequence[np.ndarray]) -> None:
        """Adds tokens to the end of each row, an int vector `(T,)` per row."""
        pairs = zip(self._unread, rows, strict=True)
        self._unread = [np.concatenate(pair).astype(np.int32) for pair in pairs]

    def read(self) -> None:
        """Reads all unread tokens but the last of each row."""
        if all(len(row) <= 1 for row in self._unread):
            return
        size = self._group_size
        groups = [
            keras.tree.map_structure(lambda each, n=first: each[n : n + size], group)
            for group in self._groups
            for first in range(0, self._num_rows // len(self._groups), size)
        ]
        for number, group in enumerate(groups):
            rows = [row[:-1] for row in self._unread[number * size : (number + 1) * size]]
            memory = self._reader.memory_after(rows, self._memory_after_steps(group))
            groups[number] = self._memory_of_steps(memory)
        self._groups = groups
        self._unread = [row[-1:] for row in self._unread]

    def add_steps(self, step_state: Any, lengths: np.ndarray, newest_token_ids: np.ndarray) -> None:
        """Adds the tokens of a step state to memory.

        `lengths`, int32 `(B,)`, are the tokens of each row that steps have read.
        `newest_token_ids`, int32 `(B,)`, are the tokens after these, one per row.
        """
        self._groups = [self._finish(self.joined(), step_state, common_length(lengths))]
        self._unread = list(newest_token_ids[:, None])
