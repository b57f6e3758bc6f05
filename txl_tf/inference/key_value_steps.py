"""Reading with a memory of keys and values.

Shape letters used in this module: B rows of memory, R rows that read and may share one of these.
"""

from keras import ops

from txl_tf import functional
from txl_tf.inference.steps import Steps
from txl_tf.layers.attention.operators import OneToken
from txl_tf.models.memory import KeyValueMemory, Memory, MemoryBesideRecent, check_memory
from txl_tf.models.reading import Reading


class KeyValueSteps(Steps):
    """Steps with a memory of keys and values.

    The step state is a second `KeyValueMemory`, which holds the recent tokens. Its valid length is
    their number, the same for all rows. A loop that wrote to memory would copy it for each token.
    """

    def initial_memory(self, num_rows):
        return self._empty(num_rows, self._plan.operator.num_places(self._memory_length))

    def _empty(self, num_rows, num_places):
        shape = (num_rows, num_places, self._config.num_heads, self._config.head_dim)
        zeros = ops.zeros(shape, self._model.compute_dtype)
        # All layers share one tensor of zeros, as no tensor is written in place.
        empty = [self._plan.operator.arranged(zeros, zeros)] * len(self._model.blocks)
        return KeyValueMemory(*zip(*empty, strict=True), ops.zeros((num_rows,), "int32"))

    def converted(self, memory):
        if not isinstance(memory, Memory):
            return memory
        operator, keys_and_values = self._plan.operator, []
        num_unused = operator.num_places(self._memory_length) - self._memory_length
        for block, states in zip(self._model.blocks, memory.states, strict=True):
            states = ops.pad(states, [[0, 0], [num_unused, 0], [0, 0]])
            keys, values = map(block.attention.split_heads, block.project_memory(states))
            keys_and_values.append(operator.arranged(keys, values))
        return KeyValueMemory(*zip(*keys_and_values, strict=True), memory.valid_length)

    def constants(self, num_tokens):
        operator = self._plan.operator
        num_places = operator.num_places(self._memory_length)
        key_length = num_places + operator.part_tokens(num_tokens, self._segment_length)
        return self._model.distance_keys(key_length, self._config)

    def arguments(self, token_ids, memory, lengths=None, document_starts=None, constants=None):
        check_memory(memory, KeyValueMemory, token_ids)
        reading = Reading(
            config=self._config,
            operator=self._plan.operator,
            memory_length=self._memory_length,
            distances=constants or self.constants(ops.shape(token_ids)[1]),
            segment_length=self._segment_length,
            num_unused=self._plan.operator.num_places(self._memory_length) - self._memory_length,
        )
        return {"lengths": lengths, "document_starts": document_starts, "reading": reading}

    def begin(self, memory, rows_per_memory=1, capacity=64):
        num_rows = memory.valid_length.shape[0] * rows_per_memory
        return self._empty(num_rows, capacity)._replace(valid_length=ops.zeros((), "int32"))

    def step(self, token_ids, is_active, memory, step_state, constants):
        operator = OneToken(
            position=step_state.valid_length,
            num_places_read=memory.keys[0].shape[3],
            capacity=step_state.keys[0].shape[3],
            num_rows=token_ids.shape[0],
        )
        hidden, both = self._model(
            ops.expand_dims(token_ids, 1),
            MemoryBesideRecent(memory, step_state),
            reading=Reading(self._config, operator, self._memory_length, constants),
        )
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
        return KeyValueMemory(
            keys,
            values,
            functional.next_valid_length(memory.valid_length, self._memory_length, lengths),
        )
