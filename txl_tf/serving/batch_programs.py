"""Programs of the text server that write a token of every text in a batch of one size.

Shape letters used in this module: R rows, V vocabulary.
"""

from typing import Any

import keras
import tensorflow as tf

from txl_tf.generation.decoding import DecodingState, TokenRules, write_tokens
from txl_tf.generation.session import CAPACITY, writing_engine


class BatchPrograms:
    """Programs for a number of rows, and the fastest engine for them.

    They read the weights as they are when the server starts. Nothing is rounded, so that a text
    does not depend on the number of texts beside it.
    """

    def __init__(self, model: keras.Model, num_rows: int) -> None:
        self._engine = engine = writing_engine(model, None, num_rows, storage_dtype="float32")
        self._constants = engine.step_constants()
        compiles = engine.plan.compile_step
        self._step = tf.function(self._next_tokens, autograph=False, jit_compile=compiles)
        self._memory_of_steps = tf.function(engine.memory_of_steps, autograph=False)
        self._finish = tf.function(engine.finish, autograph=False)
        self._memory = self._read_memory = None

    def begin(self, memory: Any) -> Any:
        """Takes the memory of all rows; returns the recent tokens beside it, none at first."""
        self._memory, self._read_memory = memory, self._memory_of_steps(memory)
        return self._engine.begin(memory, capacity=CAPACITY)

    def write_token(self, state: DecodingState, settings: dict[str, tf.Tensor]) -> DecodingState:
        """Writes one token of every row; `recent` of a state holds recent tokens and logits."""
        return self._step(self._read_memory, self._constants, state, settings)

    def finish(self, state: DecodingState, num_recent: int) -> Any:
        """Returns the memory of all rows with the recent tokens."""
        return self._finish(self._memory, state.recent[0], tf.constant(num_recent, tf.int32))

    def _next_tokens(
        self, memory: Any, constants: Any, state: DecodingState, settings: dict[str, tf.Tensor]
    ) -> DecodingState:
        def step(token_ids: tf.Tensor, is_active: tf.Tensor, recent: Any) -> tuple[Any, Any]:
            logits, recent = self._engine.step(token_ids, is_active, memory, recent[0], constants)
            return logits, (recent, logits)

        # XLA would compile a step outside a loop again for each number of recent tokens.
        return write_tokens(step, TokenRules.of_settings(settings), settings["seed"], state, 1)
