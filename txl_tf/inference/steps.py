"""Kinds of memory of an engine, and how each reads segments and single tokens.

Shape letters used in this module:
  B rows of memory, R rows that read and may share one of these, M memory length, C capacity for
  recent tokens, V vocabulary.
"""

import inspect

import keras
from keras import ops

from txl_tf import functional
from txl_tf.config.model import ModelConfig
from txl_tf.layers.attention.operators import AllHeads, OneToken
from txl_tf.models.memory import KeyValueMemory, Memory, MemoryBesideRecent, check_memory
from txl_tf.models.reading import Reading


def takes_reading(model):
    """True if `call` of a model names `reading`; Keras passes no objects as `kwargs`."""
    return "reading" in inspect.signature(type(model).call).parameters


class Steps:
    """Base class of the kinds of memory.

    `arguments` are the arguments of the model besides tokens and memory. `constants` are tensors
    for reading at most `num_tokens` that depend only on the weights, `step_constants` those for
    single tokens. While these are read, memory stays unchanged. What changes from token to token is
    the step state. Each kind has these methods too:

    - `initial_memory(num_rows)` returns the memory of `B` rows that have read nothing yet.
    - `begin(memory, rows_per_memory, capacity)` returns the step state of rows that have read only
      `memory`. `rows_per_memory` rows share each of its `B` rows, and at most `capacity` tokens
      are read before `finish`.
    - `step(token_ids, is_active, memory, step_state, constants)` reads one token `(R,)` per row and
      returns logits `(R, V)` and the next step state. `is_active`, bool `(R,)`, is false for rows
      whose tokens are not kept; with keys and values `finish` drops them. `memory` comes from
      `memory_of_steps`, `constants` from `step_constants`.
    - `finish(memory, step_state, lengths)` returns the memory of steps with the tokens of a step
      state of `B` rows. `lengths`, int32 `(B,)` or a scalar, are the tokens of each row to keep.
    """

    takes_lengths = True
    """True if rows of different lengths can be read, whose padding does not enter memory."""
    spans_segments = True
    """True if several segments can be read at once."""

    def __init__(self, model, config, memory_length, segment_length, plan):
        self._model = model
        self._config = config
        self._memory_length = memory_length
        self._segment_length = segment_length
        self._plan = plan

    def converted(self, memory):
        """Returns the model's own memory as this kind, and other memory unchanged."""
        return memory

    def step_constants(self):
        """Computes the tensors for `step` that depend only on the weights."""
        return self.constants(1)

    def memory_of_steps(self, memory):
        """Returns memory as `step` and `finish` read it, rounded if the plan says so."""
        return memory

    def memory_after_steps(self, memory):
        """Returns the memory of steps as segments read it."""
        return memory

    def select(self, step_state, rows):
        """Returns a state with its rows in the order of `rows`, int32 `(R,)`; a row may recur."""
        # Reordered rows share their memory, so only the recent tokens move.
        return keras.tree.map_structure(
            lambda each: ops.take(each, rows, axis=0) if len(each.shape) else each, step_state
        )

    def _logits(self, hidden):
        return ops.squeeze(self._model.logits_of(hidden), axis=1)


class HiddenStateSteps(Steps):
    """Memory of hidden states, the model's own, which each token advances.

    A recurrent model, or a user's model whose `call` takes no `reading`, is called with tokens and
    memory alone.
    """

    spans_segments = False

    def __init__(self, model, config, *others):
        super().__init__(model, config, *others)
        self.takes_lengths = takes_reading(model)

    def initial_memory(self, num_rows):
        lengths = [self._memory_length] if isinstance(self._config, ModelConfig) else []
        return self._model.initial_memory(num_rows, *lengths)

    def constants(self, num_tokens):
        return ()

    def arguments(self, token_ids, memory, lengths=None, document_starts=None, constants=None):
        if self.takes_lengths:
            reading = Reading(self._config, AllHeads(), memory.memory_length)
            return {"lengths": lengths, "document_starts": document_starts, "reading": reading}
        # Python refuses those that the call of the model does not name.
        options = {"lengths": lengths, "document_starts": document_starts}
        return {name: each for name, each in options.items() if each is not None}

    def begin(self, memory, rows_per_memory=1, capacity=64):
        return keras.tree.map_structure(
            lambda each: ops.repeat(each, rows_per_memory, axis=0), memory
        )

    def step(self, token_ids, is_active, memory, step_state, constants):
        token_ids = ops.expand_dims(token_ids, 1)
        arguments = self.arguments(token_ids, step_state)
        hidden, read = self._model(token_ids, step_state, **arguments)

        def kept(new, old):  # a token cannot be dropped later
            is_kept = ops.reshape(is_active, [-1] + [1] * (len(old.shape) - 1))
            return ops.where(is_kept, new, old)

        return self._logits(hidden), keras.tree.map_structure(kept, read, step_state)

    def finish(self, memory, step_state, lengths):
        return step_state


class KeyValueSteps(Steps):
    """Memory of keys and values; the step state holds the keys and values of recent tokens."""

    def initial_memory(self, num_rows):
        return self._empty(num_rows, self._plan.operator.num_places(self._memory_length))

    def _empty(self, num_rows, num_places):
        shape = (num_rows, num_places, self._config.num_heads, self._config.head_dim)
        zeros = ops.zeros(shape, self._model.compute_dtype)
        # All layers share the zeros, which are never written in place.
        empty = [self._plan.operator.arranged(zeros, zeros)] * len(self._model.blocks)
        return KeyValueMemory(*zip(*empty, strict=True), ops.zeros((num_rows,), "int32"))

    def converted(self, memory):
        if not isinstance(memory, Memory):
            return memory
        operator, kept = self._plan.operator, []
        num_unused = operator.num_places(self._memory_length) - self._memory_length
        for block, states in zip(self._model.blocks, memory.states, strict=True):
            states = ops.pad(states, [[0, 0], [num_unused, 0], [0, 0]])
            projected = map(block.attention.split_heads, block.project_memory(states))
            kept.append(operator.arranged(*projected))
        return KeyValueMemory(*zip(*kept, strict=True), memory.valid_length)

    def constants(self, num_tokens):
        operator = self._plan.operator
        together = operator.part_tokens(num_tokens, self._segment_length)
        key_length = operator.num_places(self._memory_length) + together
        return self._model.distance_keys(key_length, self._config)

    def arguments(self, token_ids, memory, lengths=None, document_starts=None, constants=None):
        check_memory(memory, KeyValueMemory, token_ids)
        reading = Reading(
            self._config,
            self._plan.operator,
            self._memory_length,
            constants or self.constants(ops.shape(token_ids)[1]),
            self._segment_length,
            self._plan.operator.num_places(self._memory_length) - self._memory_length,
        )
        return {"lengths": lengths, "document_starts": document_starts, "reading": reading}

    def begin(self, memory, rows_per_memory=1, capacity=64):
        recent = self._empty(memory.valid_length.shape[0] * rows_per_memory, capacity)
        return recent._replace(valid_length=ops.zeros((), "int32"))

    def step(self, token_ids, is_active, memory, step_state, constants):
        operator = OneToken(
            position=step_state.valid_length,
            num_places_read=memory.keys[0].shape[3],
            capacity=step_state.keys[0].shape[3],
            num_rows=token_ids.shape[0],
        )
        reading = Reading(self._config, operator, self._memory_length, constants)
        both = MemoryBesideRecent(memory, step_state)
        hidden, both = self._model(ops.expand_dims(token_ids, 1), both, reading=reading)
        return self._logits(hidden), both.recent

    def finish(self, memory, step_state, lengths):
        keys, values = (
            tuple(
                functional.last_positions(
                    ops.concatenate(pair, axis=axis), axis, lengths, self._memory_length
                )
                for pair in zip(memory[part], step_state[part], strict=True)
            )
            for part, axis in ((0, 3), (1, 2))
        )
        valid_length = functional.next_valid_length(
            memory.valid_length, self._memory_length, lengths
        )
        return KeyValueMemory(keys, values, valid_length)
