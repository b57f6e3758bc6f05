"""Signatures on token ids, and the tensor format of memory in requests.

Shape letters used in this module: B rows, M memory length, D hidden width, L layers, T tokens,
V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from txl_tf.config.model import ModelConfig
from txl_tf.export import guards
from txl_tf.export.sampling import Sampling
from txl_tf.export.served_model import ExportOptions, ServedModel, traced_once
from txl_tf.models.memory import Memory

STATES = "memory_states"
VALID_LENGTH = "memory_valid_length"


def signature(function: Callable[..., Any], specs: list[tf.TensorSpec]) -> Any:
    """Returns a `tf.function` with named inputs of open shapes, in the order of `specs`."""

    def signature_function(*tensors):
        return function(*tensors)

    return tf.function(signature_function, input_signature=specs, autograph=False)


class WireMemory:
    """Conversion of memory from and to the tensors of requests.

    On the wire it is one tensor `(B, L, M, D)` and the valid lengths `(B,)`. Hidden states are
    half the size of keys and values. Rows that have read nothing may send a tensor
    `(B, 0, 0, 0)`, or omit it, which gives `(0, 0, 0, 0)`. `take` checks states, valid length and
    the number of rows, and returns a float32 `Memory`; `give` returns the two outputs.
    `memory_length` is 0 for a model without recurrence.
    """

    def __init__(self, config: ModelConfig, dtype: tf.DType) -> None:
        self.dtype = dtype
        self.memory_length = config.effective_memory_length
        self.shape = (config.num_layers, self.memory_length, config.hidden_dim)
        scalar = tf.TensorSpec([], tf.int32)
        self.take = traced_once(self._take, [*self.specs(), scalar])
        states = tf.TensorSpec([None, self.memory_length, config.hidden_dim])
        memory = Memory((states,) * config.num_layers, tf.TensorSpec([None], tf.int32))
        self.give = traced_once(self._give, [memory])

    def specs(self) -> list[tf.TensorSpec]:
        """Returns the input specs of memory; shapes are open, because guards check them."""
        return [
            tf.TensorSpec(None, self.dtype, STATES),
            tf.TensorSpec(None, tf.int32, VALID_LENGTH),
        ]

    def _take(self, states, valid_length, num_rows):
        full = tf.stack([num_rows, *self.shape])
        nothing, absent = tf.stack([num_rows, 0, 0, 0]), tf.zeros([4], tf.int32)
        meaning = "rows, layers, memory length, width; or nothing read yet"
        states = guards.of_shape(states, STATES, [full, nothing, absent], meaning)
        states = tf.ensure_shape(states, [None] * 4)
        is_nothing = tf.equal(tf.size(states), 0)
        states = guards.finite(tf.cast(states, tf.float32), STATES)
        highest = tf.where(is_nothing, 0, self.memory_length)
        valid_length = guards.row_vector(valid_length, VALID_LENGTH, num_rows)
        valid_length = guards.in_range(valid_length, VALID_LENGTH, 0, highest)
        states = tf.cond(is_nothing, lambda: tf.zeros(full), lambda: states)
        states = tf.ensure_shape(states, [None, *self.shape])
        return Memory(tuple(tf.unstack(states, axis=1)), valid_length)

    def _give(self, memory):
        states = tf.stack(memory.states, axis=1)  # [B, L, M, D]
        states = guards.finite(states, f"next {STATES}")
        return {STATES: tf.cast(states, self.dtype), VALID_LENGTH: memory.valid_length}


class TokenSignatures:
    """Signatures on token ids, which check requests and answer them.

    `rows_of_ids` checks token ids, lengths and the fewest tokens of a row, and returns the ids
    `(B, T)` with zeros after each row's end, the lengths and the number of rows.
    `checked_sampling` checks a `Sampling` and returns its `WriterSettings`.
    """

    def __init__(self, served: ServedModel, memory: WireMemory, options: ExportOptions) -> None:
        self._served = served
        self._memory = memory
        self._options = options
        open_ids = tf.TensorSpec(None, tf.int32)
        scalar = tf.TensorSpec([], tf.int32)
        self.rows_of_ids = traced_once(self._rows_of_ids, [open_ids, open_ids, scalar])
        sampling = Sampling(*Sampling.specs())
        self.checked_sampling = traced_once(self._checked_sampling, [sampling, scalar])
        rows, padded = tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, None], tf.int32)
        self._checked_targets = traced_once(self._targets, [open_ids, padded, rows])

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Returns a `tf.function` by name; a model without memory has no `generate`."""
        lengths = tf.TensorSpec(None, tf.int32, "lengths")
        ids = tf.TensorSpec(None, tf.int32, "token_ids")
        targets = tf.TensorSpec(None, tf.int32, "target_ids")
        memory = self._memory.specs()
        sampling = Sampling.specs()
        found = {
            "score": signature(self.score, [ids, targets, lengths, *memory]),
            "next_token": signature(self.next_token, [ids, lengths, *memory]),
        }
        if self._memory.memory_length:
            found["generate"] = signature(self.generate, [ids, lengths, *sampling, *memory])
        return found

    def score(self, token_ids, target_ids, lengths, memory_states, memory_valid_length):
        """Scores targets `(B, T)` in nats; each follows the token at the same index.

        The first `lengths` `(B,)` tokens of a row count. Returns `nll` `(B, T)`, `total_nll` and
        `num_scored` `(B,)`, and the next memory.
        """
        token_ids, lengths, num_rows = self.rows_of_ids(token_ids, lengths, 1)
        target_ids = self._checked_targets(target_ids, token_ids, lengths)
        memory = self._memory.take(memory_states, memory_valid_length, num_rows)
        nll, memory = self._served.score(token_ids, target_ids, lengths, memory)
        return {
            "nll": nll,
            "total_nll": tf.reduce_sum(nll, axis=1),
            "num_scored": lengths,
            **self._memory.give(memory),
        }

    def next_token(self, token_ids, lengths, memory_states, memory_valid_length):
        """Returns `candidate_ids`, `probabilities`, `(B, C)`, best first, and the next memory."""
        token_ids, lengths, num_rows = self.rows_of_ids(token_ids, lengths, 1)
        memory = self._memory.take(memory_states, memory_valid_length, num_rows)
        candidate_ids, probabilities, memory = self._served.next_token(
            token_ids, lengths, lengths, memory
        )
        return {
            "candidate_ids": candidate_ids,
            "probabilities": probabilities,
            **self._memory.give(memory),
        }

    def generate(self, token_ids, lengths, *sampling_and_memory):
        """Generates after each row; arguments are the fields of `Sampling`, then the memory.

        Returns `token_ids` and `nll`, `(B, S)`, zeros after a row's end, `lengths` `(B,)`, and
        the memory of all tokens but the last of each row, from which to continue.
        """
        *sampling, memory_states, memory_valid_length = sampling_and_memory
        token_ids, lengths, num_rows = self.rows_of_ids(token_ids, lengths, 1)
        settings = self.checked_sampling(Sampling(*sampling), num_rows)
        memory = self._memory.take(memory_states, memory_valid_length, num_rows)
        written, nll, counts, memory = self._served.generate(token_ids, lengths, settings, memory)
        return {
            "token_ids": written,
            "lengths": counts,
            "nll": nll,
            **self._memory.give(memory),
        }

    def _checked_sampling(self, sampling, num_rows):
        vocabulary_size = self._served.config.vocabulary_size
        limit = self._options.max_output_tokens
        return sampling.checked(num_rows, limit, vocabulary_size).for_writer()

    def _targets(self, target_ids, token_ids, lengths):
        shape = tf.shape(token_ids)
        target_ids = guards.of_shape(target_ids, "target_ids", [shape], "as token_ids")
        target_ids = tf.ensure_shape(target_ids, [None, None])
        return self._within_vocabulary(target_ids, "target_ids", lengths)

    def _rows_of_ids(self, token_ids, lengths, shortest):
        token_ids = guards.of_rank(token_ids, "token_ids", ("rows", "tokens"))
        num_rows, num_tokens = tf.unstack(tf.shape(token_ids))
        token_ids = guards.refuse_unless(
            num_rows > 0, lambda: tf.constant("token_ids has no rows."), token_ids
        )
        limit = self._options.max_input_tokens
        token_ids = guards.refuse_unless(
            (num_tokens >= shortest) & (num_tokens <= limit),
            lambda: tf.strings.join(
                [
                    "token_ids has ",
                    tf.strings.as_string(num_tokens),
                    " tokens per row; it must have ",
                    tf.strings.as_string(shortest),
                    f" to {limit}.",
                ]
            ),
            token_ids,
        )
        num_rows, num_tokens = tf.unstack(tf.shape(token_ids))
        is_absent = tf.equal(tf.rank(lengths), 0) & tf.reduce_all(lengths < 0)
        lengths = guards.row_vector(lengths, "lengths", num_rows)
        lengths = tf.where(is_absent, num_tokens, lengths)
        lengths = guards.in_range(lengths, "lengths", shortest, num_tokens)
        return self._within_vocabulary(token_ids, "token_ids", lengths), lengths, num_rows

    def _within_vocabulary(self, ids: tf.Tensor, name: str, lengths: tf.Tensor) -> tf.Tensor:
        counts = tf.sequence_mask(lengths, tf.shape(ids)[1])
        ids = guards.in_range(ids, name, 0, self._served.config.vocabulary_size - 1, counts)
        return tf.where(counts, ids, 0)
