"""Reading with the model's own memory of hidden states.

Shape letters used in this module: R rows.
"""

import inspect

import keras
from keras import ops

from txl_tf.config.model import ModelConfig
from txl_tf.inference.steps import Steps
from txl_tf.layers.attention.operators import AllHeads
from txl_tf.models.reading import Reading


def takes_reading(model):
    """True if `call` of a model names `reading`; Keras passes no objects as `kwargs`."""
    return "reading" in inspect.signature(type(model).call).parameters


class HiddenStateSteps(Steps):
    """Steps with the model's own memory, which each token advances: it is also the step state.

    A recurrent model, or a user's model whose `call` takes no `reading`, is called only with tokens
    and memory.
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
        options = {"lengths": lengths, "document_starts": document_starts}
        if self.takes_lengths:
            return {**options, "reading": Reading(self._config, AllHeads(), memory.memory_length)}
        # Python refuses options that the call of the model does not name.
        return {name: each for name, each in options.items() if each is not None}

    def begin(self, memory, rows_per_memory=1, capacity=64):
        return keras.tree.map_structure(
            lambda each: ops.repeat(each, rows_per_memory, axis=0), memory
        )

    def step(self, token_ids, is_active, memory, step_state, constants):
        token_ids = ops.expand_dims(token_ids, 1)
        hidden, next_state = self._model(
            token_ids, step_state, **self.arguments(token_ids, step_state)
        )

        # A token cannot be dropped later, so rows that are not active keep their state.
        def kept(new, old):
            is_kept = ops.reshape(is_active, [-1] + [1] * (len(old.shape) - 1))
            return ops.where(is_kept, new, old)

        return self._logits(hidden), keras.tree.map_structure(kept, next_state, step_state)

    def finish(self, memory, step_state, lengths):
        return step_state
