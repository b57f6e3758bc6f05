"""Batch of the text server: texts that are written side by side, a few tokens of each at a time.

Shape letters used in this module: R rows, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from txl_tf.generation.decoding import DecodingState, write_tokens
from txl_tf.generation.session import CAPACITY, writing_engine
from txl_tf.generation.token_rules import PENALTIES, TokenRules
from txl_tf.inference.segment_reader import joined_rows
from txl_tf.layers.compiled_parts import compiled
from txl_tf.samplers import SETTINGS
from txl_tf.serving.completion import Completion

_SETTINGS = {**SETTINGS, **dict.fromkeys(PENALTIES, "float32")}
_TOKENS_AT_ONCE = 4
"""Tokens that a call of a program writes: each call copies the recent tokens of all rows."""


class BatchPrograms:
    """Programs for a number of rows, and the fastest engine for them.

    They read the weights as they are when the server starts. Either the programs for every number
    of rows round numbers, or none of them does, so that a text does not depend on the number of
    texts beside it. `alone` are the programs for one row.
    """

    def __init__(self, model: keras.Model, num_rows: int, alone: Self | None = None) -> None:
        engine = writing_engine(model, None, num_rows, storage_dtype="auto")
        self.steps, compiles = engine.steps, engine.plan.compile_step
        self.rounds = rounds = engine.plan.rounds_steps
        # Rounded weights are the same for any number of rows.
        self.constants: Any = alone.constants if alone and rounds else self.steps.step_constants()
        self.write_tokens = compiled(self._write, model, compiles)
        self.memory_of_steps = compiled(self.steps.memory_of_steps, model)
        self.finish = compiled(self._finish, model, rounds)

    def _finish(self, memory: Any, step_state: Any, lengths: Any) -> Any:
        return self.steps.memory_after_steps(self.steps.finish(memory, step_state, lengths))

    def _write(
        self,
        memory: Any,
        constants: Any,
        state: DecodingState,
        settings: dict[str, Any],
        max_tokens: Any,
    ) -> DecodingState:
        """Writes `max_tokens` `(R,)`; the step state holds the engine's, and the last logits."""

        def step(token_ids: Any, is_active: Any, state: Any) -> tuple[Any, Any]:
            logits, state = self.steps.step(token_ids, is_active, memory, state[0], constants)
            return logits, (state, logits)

        rules = TokenRules.of_settings(settings)
        return write_tokens(step, rules, settings["seed"], state, max_tokens)


class TextBatch:
    """The texts of the batch, `rows`, and the state of the decoding loop.

    There is a program for a single text and one for `max_rows` texts. Where numbers are rounded,
    which compiles fast, there is one for each power of two between. `empty_memory` fills the places
    without a text.
    """

    def __init__(self, model: keras.Model, max_rows: int, empty_memory: Any) -> None:
        self.rows: list[Completion] = []
        self._vocabulary_size = model.config.vocabulary_size
        self._programs_of = {1: (alone := BatchPrograms(model, 1))}
        between = range(1, (max_rows - 1).bit_length()) if alone.rounds else ()
        for size in {max_rows, *(1 << power for power in between)} - {1}:
            self._programs_of[size] = BatchPrograms(model, size, alone)
        self._empty_memory = empty_memory
        # Compiles the programs, so that the first request need not wait for them.
        for size in self._programs_of:
            self._begin([empty_memory] * size)
            list(self.write_tokens())

    def must_change(self, num_rows: int) -> bool:
        """True if recent tokens must become memory, or a smaller program is enough."""
        if not self.rows:
            return False
        is_full = int(self._state.index) == CAPACITY
        return is_full or self._size_of(num_rows) < self._size_of(len(self.rows))

    def _size_of(self, num_rows: int) -> int:
        return min(size for size in self._programs_of if size >= num_rows)

    def regroup(self, rows: Sequence[Completion]) -> None:
        """Replaces the texts of the batch; unfinished texts that leave it keep their memory.

        A program has a fixed number of rows, and their memory lies in common tensors. So a change
        copies all memory: 79 MB a row for 12 layers of width 512 and M = 1,600 in float32.
        """
        # 1. Recent tokens become memory, all but the newest of each text, which a step reads next.
        # A client may cancel a text at any time.
        places = [place for place, row in enumerate(self.rows) if row in rows or not row.is_over]
        if places:
            # Tokens that a call wrote after the end of a text do not count.
            lengths = np.zeros((len(self._num_read),), np.int32)
            for place in places:
                lengths[place] = len(self.rows[place].written_ids) - self._num_read[place]
            state = self._state.step_state[0]
            memory = self._programs.finish(self._read_memory, state, ops.convert_to_tensor(lengths))
        # 2. Each text takes its own row, in or out of the next batch.
        for place in places:
            self.rows[place].memory = keras.tree.map_structure(
                lambda each, k=place: each[k : k + 1], memory
            )
        # 3. The rows of the next batch are joined, and the texts let go of theirs.
        self.rows = list(rows)
        if rows:
            empty = [self._empty_memory] * (self._size_of(len(rows)) - len(rows))
            self._begin([*(row.memory for row in rows), *empty])
        for row in rows:
            row.memory = None

    def _begin(self, memories: list[Any]) -> None:
        rows, size = self.rows, len(memories)

        def tensor(values: list[Any], dtype: str = "int32") -> Any:
            return ops.convert_to_tensor(np.array(values + [1] * (size - len(rows)), dtype))

        self._programs = programs = self._programs_of[size]
        # Tokens of each text that memory holds, or that the first step reads.
        self._num_read = [len(row.written_ids) for row in rows] + [0] * (size - len(rows))
        memory = joined_rows(memories)
        self._read_memory = programs.memory_of_steps(memory)
        uses = np.zeros((size, self._vocabulary_size), np.int32)
        bias = np.zeros(uses.shape, np.float32)
        for place, row in enumerate(rows):
            uses[place] = row.state.after_writing(np.array(row.written_ids, np.int32)).uses
            bias[place] = 0.0 if row.bias is None else row.bias
        self._settings = {
            name: tensor([getattr(row.settings, name) for row in rows], dtype)
            for name, dtype in _SETTINGS.items()
        }
        self._settings |= {
            "seed": tensor([row.seed for row in rows]),
            "bias": ops.convert_to_tensor(bias),
        }
        self._state = DecodingState.begin(
            tensor([[*row.state.unread, *row.written_ids][-1] for row in rows]),
            (programs.steps.begin(memory, capacity=CAPACITY), ops.zeros(uses.shape)),
            CAPACITY,
            uses=ops.convert_to_tensor(uses),
            position=tensor([row.state.position + len(row.written_ids) for row in rows]),
        )

    def write_tokens(self) -> Iterator[tuple[Completion, int, np.ndarray | None]]:
        """Writes a few tokens of every text.

        Yields each token, and the log-probabilities `(V,)` if scored, until the text is over.
        """
        first = int(self._state.index)
        is_scored = any(row.settings.logprobs is not None for row in self.rows if not row.is_over)
        num_tokens = min(1 if is_scored else _TOKENS_AT_ONCE, CAPACITY - first)
        max_tokens = np.zeros((len(self._num_read),), np.int32)
        for place, row in enumerate(self.rows):
            if not row.is_over:
                rest = row.settings.max_tokens - len(row.written_ids)
                max_tokens[place] = min(num_tokens, rest)
        programs = self._programs
        self._state = programs.write_tokens(
            self._read_memory,
            programs.constants,
            self._state,
            self._settings,
            ops.convert_to_tensor(max_tokens),
        )
        output = ops.convert_to_numpy(self._state.output_ids)[first : first + num_tokens]
        for token_ids in output.tolist():
            for place, (row, token_id) in enumerate(zip(self.rows, token_ids, strict=False)):
                if row.is_over:
                    continue
                logits = None if row.settings.logprobs is None else self._state.step_state[1][place]
                log_probs = None if logits is None else ops.log_softmax(logits)
                yield row, token_id, None if log_probs is None else ops.convert_to_numpy(log_probs)
