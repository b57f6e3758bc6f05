"""Interface of the kinds of memory: how an engine reads segments and single tokens with each.

Shape letters used in this module:
  B rows of memory, R rows that read and may share one of these, T tokens, C capacity for recent
  tokens, V vocabulary.
"""

import abc
from typing import Any

import keras
from keras import ops

from txl_tf.inference.execution_plan import ExecutionPlan
from txl_tf.models.memory import KeyValueMemory, Memory

# A step state has the form of a memory too.
AnyMemory = Memory | KeyValueMemory


class Steps(abc.ABC):
    """Reader with one kind of memory: the arguments for segments, and the steps of single tokens.

    Segments are read by the model, with `arguments`. Single tokens are read by the methods of this
    class, in rounds:

    1. `memory_of_steps` brings memory into the form that steps read. It stays unchanged during the
       round.
    2. `begin` makes the step state, which holds what changes from token to token.
    3. `step` reads one token of every row, at most `capacity` times, and returns the next step
       state. Between steps `select` may reorder rows.
    4. `finish` adds the tokens of the step state to memory, still in the form of steps. The next
       round begins at 2, or `memory_after_steps` returns to the form that segments read.
    """

    takes_lengths = True
    """True if rows of different lengths can be read, whose padding does not enter memory."""
    spans_segments = True
    """True if several segments can be read at once."""

    def __init__(
        self,
        model: keras.Model,
        config: Any,
        memory_length: int,
        segment_length: int,
        plan: ExecutionPlan,
    ) -> None:
        self._model = model
        self._config = config
        self._memory_length = memory_length
        self._segment_length = segment_length
        self._plan = plan

    @abc.abstractmethod
    def initial_memory(self, num_rows: int) -> AnyMemory:
        """Returns the memory of `B` rows that have read nothing yet."""

    def converted(self, memory: AnyMemory) -> AnyMemory:
        """Returns the model's own memory as a memory of this kind, and other memory unchanged."""
        return memory

    @abc.abstractmethod
    def constants(self, num_tokens: int) -> Any:
        """Computes the tensors for reading at most `T` tokens that depend only on the weights."""

    @abc.abstractmethod
    def arguments(
        self,
        token_ids: Any,
        memory: AnyMemory,
        lengths: Any = None,
        document_starts: Any = None,
        constants: Any = None,
    ) -> dict[str, Any]:
        """Returns the arguments of the model besides tokens and memory."""

    def step_constants(self) -> Any:
        """Computes the tensors for `step` that depend only on the weights."""
        return self.constants(1)

    def memory_of_steps(self, memory: AnyMemory) -> AnyMemory:
        """Returns the memory that `step` and `finish` read, rounded if the plan says so."""
        return memory

    def memory_after_steps(self, memory: AnyMemory) -> AnyMemory:
        """Returns the memory that segments read, from the memory that steps read."""
        return memory

    @abc.abstractmethod
    def begin(self, memory: AnyMemory, rows_per_memory: int = 1, capacity: int = 64) -> AnyMemory:
        """Returns the step state of `R` rows that have read only `memory`.

        `rows_per_memory` rows share each of the `B` rows of memory. At most `capacity` tokens, `C`,
        are read before `finish`.
        """

    @abc.abstractmethod
    def step(
        self,
        token_ids: Any,
        is_active: Any,
        memory: AnyMemory,
        step_state: AnyMemory,
        constants: Any,
    ) -> tuple[Any, AnyMemory]:
        """Reads one token `(R,)` per row; returns logits `(R, V)` and the next step state.

        `is_active`, bool `(R,)`, is false for rows whose tokens are not kept. A class whose
        `finish` drops tokens ignores it. `memory` comes from `memory_of_steps`, and `constants`
        from `step_constants`.
        """

    @abc.abstractmethod
    def finish(self, memory: AnyMemory, step_state: AnyMemory, lengths: Any) -> AnyMemory:
        """Returns the memory of steps with the tokens of a step state of `B` rows.

        `lengths`, int32 `(B,)` or a scalar, are the tokens of each row to keep.
        """

    def select(self, step_state: AnyMemory, rows: Any) -> AnyMemory:
        """Returns a step state with its rows in the order of `rows`, int32 `(R,)`.

        A row may occur more than once.
        """
        # Rows that change places share their memory of keys and values, so only their recent tokens
        # move. The model's own memory is the step state, and moves as a whole.
        return keras.tree.map_structure(
            lambda each: ops.take(each, rows, axis=0) if len(each.shape) else each, step_state
        )

    def _logits(self, hidden: Any) -> Any:
        return ops.squeeze(self._model.logits_of(hidden), axis=1)
