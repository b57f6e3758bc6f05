"""Inference engine, which reads and writes tokens with fixed weights.

Shape letters used in this module:
  B rows of memory, R rows that read and may share one of these, T tokens, M memory
  length, C capacity for recent tokens, D hidden width, V vocabulary, L layers.
"""

import inspect

import keras
from keras import ops

from txl_tf import functional
from txl_tf.config.model import RELATIVE_ENCODINGS, ModelConfig
from txl_tf.inference.execution_plan import ExecutionPlan, device_of
from txl_tf.inference.stacked_steps import StackedSteps
from txl_tf.layers.adaptive_softmax import check_rank
from txl_tf.layers.attention_operators import AllHeads, OneToken
from txl_tf.models.language_model import language_model_of
from txl_tf.models.memory import KeyValueMemory, Memory, MemoryBesideRecent, check_memory
from txl_tf.models.transformer_xl import Reading
from txl_tf.models.weight_versions import ComputedFromWeights


class InferenceEngine:
    """Inference engine that reads tokens with fixed weights and carries memory.

    Memory is an argument and a result, as in the model. With relative positions it holds keys and
    values: with fixed weights, attention would compute the same ones again from hidden states in
    every segment. Otherwise it is the model's own memory. The layers of the model compute either.

    Segments are read with `read` and `score`, single tokens with `step`. Memory stays unchanged
    during steps, new tokens are kept beside it, and `finish` merges both.

    ```python
    engine = txl_tf.InferenceEngine(model, num_rows=1)
    memory = engine.initial_memory(1)
    nll, memory = engine.score(token_ids[:, :-1], token_ids[:, 1:], memory)
    ```

    Args:
        model: `TransformerXL`, `LSTMLanguageModel` or `QRNNLanguageModel`; for a
            `StatefulTransformerXL` its inner model is used.
        memory_length: optional int. `M`, if not as in `config`.
        keeps: str. `"keys_and_values"`, `"hidden_states"`, which is the model's
            own memory and lets weights change between reads, or `"auto"`.
        segment_length: optional int. Tokens of a segment, if not as in `config`.
        config: optional `ModelConfig` with the lengths to read with, if not the model's.
        plan: optional `ExecutionPlan`, if not the plan of the model's device.
        **choice: arguments of `ExecutionPlan.choose`, such as `num_rows`.

    Attributes:
        plan: `ExecutionPlan`.
        memory_length: int, 1 for recurrent models.
        keeps_states: bool. True if memory is the model's own.
        cached_constants: function like `constants` for loops outside of programs. It computes
            again only when a weight or the number of tokens has changed.
    """

    def __init__(
        self,
        model,
        memory_length=None,
        keeps="auto",
        *,
        segment_length=None,
        config=None,
        plan=None,
        **choice,
    ):
        self.model = model = language_model_of(model)
        self.config = config = config or model.config
        # A recurrent model, or a model of the user's whose `call` takes fewer arguments.
        self._is_plain = not _takes_reading(type(model))
        is_recurrent = not isinstance(config, ModelConfig)
        if is_recurrent and memory_length not in (None, 1):
            raise ValueError(
                "`memory_length` must be None or 1 for a recurrent model. "
                f"Received: memory_length={memory_length}"
            )
        if memory_length is None:
            memory_length = 1 if is_recurrent else config.effective_memory_length
        self.memory_length = memory_length
        self.segment_length = segment_length or config.segment_length
        self.keeps_states = not self._keeps_keys(keeps)
        self.plan = plan or ExecutionPlan.choose(
            config,
            device=device_of(model),
            keeps_states=self.keeps_states,
            # Models in bfloat16 read half the bytes already.
            memory_length=memory_length if model.compute_dtype == "float32" else 0,
            **choice,
        )
        self.cached_constants = ComputedFromWeights(self.constants, model)
        self._stacked = None
        if self.plan.stacks_layers and StackedSteps.is_possible(model):
            self._stacked = StackedSteps(model, self.config, memory_length, self.plan.rounds_steps)

    def _keeps_keys(self, keeps):
        if keeps not in ("auto", "keys_and_values", "hidden_states"):
            raise ValueError(
                '`keeps` must be "auto", "keys_and_values" or "hidden_states". '
                f"Received: keeps={keeps!r}"
            )
        is_possible = self.config.has_relative_positions and not self._is_plain
        if keeps == "keys_and_values" and not is_possible:
            raise ValueError(
                '`keeps="keys_and_values"` needs a model with `position_encoding` '
                f"{' or '.join(RELATIVE_ENCODINGS)}, whose `call` takes `reading`. "
                f"Received: position_encoding={getattr(self.config, 'position_encoding', None)!r}"
            )
        return is_possible and keeps != "hidden_states"

    def initial_memory(self, num_rows):
        """Returns the `KeyValueMemory` or `Memory` of `B` rows that have read nothing yet."""
        if not isinstance(self.config, ModelConfig):
            return self.model.initial_memory(num_rows)
        if self.keeps_states:
            return self.model.initial_memory(num_rows, self.memory_length)
        return self._empty(num_rows, self.plan.operator.num_places(self.memory_length))

    def _empty(self, num_rows, num_places):
        shape = (num_rows, num_places, self.config.num_heads, self.config.head_dim)
        zeros = ops.zeros(shape, self.model.compute_dtype)
        # All layers share the zeros, which are never written in place.
        empty = [self.plan.operator.arranged(zeros, zeros)] * len(self.model.blocks)
        return KeyValueMemory(*zip(*empty, strict=True), ops.zeros((num_rows,), "int32"))

    def adopt(self, memory):
        """Returns the memory of the model or of another engine as one of this engine.

        Raises ValueError if it is of another kind or length.
        """
        if not self.keeps_states and isinstance(memory, Memory):
            memory = self._projected(memory)
        expected = self.initial_memory(1)
        kinds = [
            (type(each), *(getattr(leaf, "shape", ())[1:] for leaf in keras.tree.flatten(each)))
            for each in (memory, expected)
        ]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"`memory` must be like {expected}, with any rows. Received: memory={memory}"
            )
        if self.keeps_states:
            return memory
        # An engine with a longer memory may have filled more positions.
        valid_length = ops.minimum(memory.valid_length, self.memory_length)
        return memory._replace(valid_length=valid_length)

    def _projected(self, memory):
        """Returns hidden states as keys and values."""
        num_unused = self.plan.operator.num_places(self.memory_length) - self.memory_length
        kept = []
        for block, states in zip(self.model.blocks, memory.states, strict=True):
            states = ops.pad(states, [[0, 0], [num_unused, 0], [0, 0]])
            projected = map(block.attention.split_heads, block.project_memory(states))
            kept.append(self.plan.operator.arranged(*projected))
        return KeyValueMemory(*zip(*kept, strict=True), memory.valid_length)

    def constants(self, num_tokens):
        """Computes the tensors for reading at most `num_tokens` that depend only on the weights."""
        if self.keeps_states:
            return ()
        operator = self.plan.operator
        together = operator.part_tokens(num_tokens, self.segment_length)
        key_length = operator.num_places(self.memory_length) + together
        return self.model.distance_keys(key_length, self.config)

    def read(self, token_ids, memory, *, lengths=None, document_starts=None, constants=None):
        """Reads tokens; more than `segment_length` with the results of one segment after the other.

        Args:
            token_ids: int tensor `(B, T)`, or embedded inputs, see `TransformerXL`.
            memory: memory of the preceding tokens.
            lengths: optional int32 tensor `(B,)`, from 0 to `T`: the tokens of each row that
                enter memory. Without relative positions it must be a scalar.
            document_starts: optional bool tensor `(B, T)`, as in `TransformerXL`;
                not with `lengths`.
            constants: optional result of `constants(T)`.

        Returns:
            Tuple of the hidden states `(B, T, D)` and the memory after each row's
            length.

        Raises:
            ValueError: If ids are out of range, or `lengths` are not possible for the model.
        """
        check_rank(token_ids, (2, 3), "(B, T)")
        if self.keeps_states and (token_ids.shape[1] or 0) > self.segment_length:
            return self._read_segments(token_ids, memory, lengths, document_starts)
        arguments = self._arguments(token_ids, memory, lengths, document_starts, constants)
        return self.model(token_ids, memory, **arguments)

    def _read_segments(self, token_ids, memory, lengths, document_starts):
        if lengths is not None:
            raise ValueError(
                f"`lengths` need inputs of at most one segment, {self.segment_length} tokens. "
                f"Received: {token_ids.shape[1]} tokens"
            )
        hidden = []
        for start in range(0, token_ids.shape[1], self.segment_length):
            piece = slice(start, start + self.segment_length)
            starts = None if document_starts is None else document_starts[:, piece]
            outputs, memory = self.read(token_ids[:, piece], memory, document_starts=starts)
            hidden.append(outputs)
        return ops.concatenate(hidden, axis=1), memory

    def hidden_states(self, token_ids, memory, lengths=None, document_starts=None, constants=None):
        """Returns the hidden states of all layers, and the next memory; arguments are as in `read`.

        They are a list of the embeddings and the output of every block, `L + 1` tensors
        `(B, T, D)`; of a recurrent model only the last output. With the model's own memory at
        most one segment is read.
        """
        self.model.check_inputs(token_ids)
        arguments = self._arguments(token_ids, memory, lengths, document_starts, constants)
        if not hasattr(self.model, "hidden_states"):
            outputs, memory = self.model(token_ids, memory, **arguments)
            return [outputs], memory
        return self.model.hidden_states(token_ids, memory, **arguments)

    def _arguments(self, token_ids, memory, lengths, document_starts, constants):
        """Returns the arguments of a call of the model besides tokens and memory."""
        if lengths is not None and document_starts is not None:
            raise ValueError("`lengths` and `document_starts` exclude each other. Received: both")
        is_ragged = lengths is not None and (self._is_plain or len(lengths.shape) > 0)
        if is_ragged and (self._is_plain or not self.config.has_relative_positions):
            raise ValueError(
                "Rows of different lengths need a model with relative positions. "
                f"Received: lengths={lengths}"
            )
        if self._is_plain:
            return {}
        arguments = {"document_starts": document_starts, "lengths": lengths}
        if self.keeps_states:
            return {**arguments, "reading": Reading(self.config, AllHeads(), memory.memory_length)}
        check_memory(memory, KeyValueMemory, token_ids)
        operator = self.plan.operator
        num_places = operator.num_places(self.memory_length)
        reading = Reading(
            self.config,
            operator,
            self.memory_length,
            constants or self.constants(ops.shape(token_ids)[1]),
            self.segment_length,
            num_unused=num_places - self.memory_length,
        )
        return {**arguments, "reading": reading}

    def score(self, token_ids, target_ids, memory, **as_read):
        """Scores the tokens `(B, T)` after `token_ids`: nats, float32 `(B, T)`, and next memory.

        Further arguments are as in `read`.
        """
        hidden, memory = self.read(token_ids, memory, **as_read)
        return self.model.negative_log_likelihood(hidden, target_ids), memory

    def step_constants(self):
        """Computes the tensors for `step` that depend only on the weights."""
        if self._stacked is not None:
            return self._stacked.constants()
        return self.constants(1)

    def begin(self, memory, rows_per_memory=1, capacity=64):
        """Creates the room for tokens that are read one at a time.

        `memory` is of `B` rows, each shared by `rows_per_memory` rows, and `capacity` the most
        tokens before `finish`. Raises ValueError if the plan cannot read single tokens.
        """
        if not isinstance(self.plan.operator, AllHeads):
            raise ValueError(
                "Reading single tokens needs an engine that was created with `writes=True`. "
                f"Received: an engine with the operator {self.plan.operator}"
            )
        if self.keeps_states:
            return keras.tree.map_structure(
                lambda each: ops.repeat(each, rows_per_memory, axis=0), memory
            )
        num_rows = memory.valid_length.shape[0] * rows_per_memory
        recent = self._empty(num_rows, capacity)._replace(valid_length=ops.zeros((), "int32"))
        return recent if self._stacked is None else self._stacked.stacked(recent)

    def memory_of_steps(self, memory):
        """Returns memory as `step` reads it until `finish`, rounded if the plan says so."""
        return memory if self._stacked is None else self._stacked.memory_of_steps(memory)

    def step(self, token_ids, is_active, memory, recent, constants):
        """Reads one token `(R,)` per row; returns logits `(R, V)` and the next `recent`.

        `is_active`, bool `(R,)`, is false for rows whose tokens are not kept; with keys and values
        `finish` drops them. `memory` comes from `memory_of_steps`, `recent` from `begin` or
        `step`, `constants` from `step_constants`.
        """
        if self._stacked is not None:
            hidden, recent = self._stacked.step(token_ids, memory, recent, constants)
        elif self.keeps_states:
            hidden, read = self.read(ops.expand_dims(token_ids, 1), recent)
            recent = _kept_where(is_active, read, recent)
        else:
            operator = OneToken(
                position=recent.valid_length,
                num_places_read=memory.keys[0].shape[3],
                capacity=recent.keys[0].shape[3],
                num_rows=token_ids.shape[0],
            )
            reading = Reading(self.config, operator, self.memory_length, constants)
            both = MemoryBesideRecent(memory, recent)
            hidden, both = self.model(ops.expand_dims(token_ids, 1), both, reading=reading)
            recent = both.recent
        return ops.squeeze(self.model.logits_of(hidden), axis=1), recent

    def select(self, recent, rows):
        """Returns `recent` with its rows in the order of `rows`, int32 `(R,)`; a row may recur."""
        # Reordered rows share their memory, so only the recent tokens move.
        return keras.tree.map_structure(
            lambda each: ops.take(each, rows, axis=0) if len(each.shape) else each, recent
        )

    def finish(self, memory, recent, lengths):
        """Merges the tokens that were read one at a time into memory, which is returned.

        `recent` has the `B` rows of memory; `lengths`, int32 `(B,)` or a scalar, are the tokens of
        each row to remember.
        """
        if self.keeps_states:
            return recent
        if self._stacked is not None:
            recent = self._stacked.unstacked(recent)
        keys, values = (
            tuple(
                functional.last_positions(
                    ops.concatenate(pair, axis=axis), axis, lengths, self.memory_length
                )
                for pair in zip(old, new, strict=True)
            )
            for axis, old, new in ((3, memory.keys, recent.keys), (2, memory.values, recent.values))
        )
        valid_length = functional.next_valid_length(
            memory.valid_length, self.memory_length, lengths
        )
        return KeyValueMemory(keys, values, valid_length)


def _takes_reading(model_class):
    """True if `call` of a class of models names `reading`; Keras passes no objects as `kwargs`."""
    return "reading" in inspect.signature(model_class.call).parameters


def _kept_where(is_active, new, old):
    """Returns the old memory of rows that are not active: a token cannot be dropped later."""

    def kept(new, old):
        is_kept = ops.reshape(is_active, [-1] + [1] * (len(old.shape) - 1))
        return ops.where(is_kept, new, old)

    return keras.tree.map_structure(kept, new, old)
