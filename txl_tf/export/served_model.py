"""Functions and stored weights that the signatures of an export share.

Shape letters used in this module: B rows, V vocabulary, R rows and C columns of a matrix, S
tokens to write, M memory length, D hidden width, L layers, T tokens, C candidates.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import keras
import tensorflow as tf

from txl_tf.export import guards
from txl_tf.export.sampling import WriterSettings
from txl_tf.export.served_weights import ServedWeights
from txl_tf.generation.decoding import DecodingState, TokenRules, write_tokens
from txl_tf.inference.engine import InferenceEngine
from txl_tf.models.memory import Memory
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.samplers import RandomSampler, RepetitionPenalty


def traced_once(function: Callable[..., Any], specs: list[Any]) -> Any:
    """Returns a `tf.function` that several signatures share, so that the export has one copy."""
    return tf.function(function, input_signature=specs, autograph=False)


class ServedModel:
    """Functions that signatures share, each traced once.

    Only the names and shapes of the model's weights matter; `weights` are in their order.
    """

    def __init__(
        self,
        model: TransformerXL,
        weights: ServedWeights,
        num_candidates: int,
        excluded_token_ids: Sequence[int] = (),
    ) -> None:
        if model.compute_dtype != "float32":
            model = TransformerXL(model.config, dtype="float32")
        self.config = model.config
        self.num_candidates = min(num_candidates, model.config.vocabulary_size)
        self._model = model
        self._weights = weights
        # Hidden states are half the size of keys and values on the wire.
        self._engine = InferenceEngine(model, keeps="hidden_states")
        self._writing_engine = InferenceEngine(model)
        self._excluded_token_ids = excluded_token_ids
        self._read_segment = self._traced_segment()
        ids, rows = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)
        memory = self._memory_spec()
        self.score = traced_once(self._score, [ids, ids, rows, memory])
        self.next_token = traced_once(self._next_token, [ids, rows, rows, memory])
        specs = [ids, rows, WriterSettings.specs(), memory]
        self.generate = traced_once(self._generate, specs)

    def _memory_spec(self) -> Memory:
        config = self.config
        states = tf.TensorSpec([None, config.effective_memory_length, config.hidden_dim])
        return Memory((states,) * config.num_layers, tf.TensorSpec([None], tf.int32))

    def _with_weights(self, weights: list[tf.Tensor]) -> keras.StatelessScope:
        """Returns a scope in which the model has these weights."""
        return keras.StatelessScope(
            state_mapping=list(zip(self._model.weights, weights, strict=True))
        )

    def _traced_segment(self) -> Any:
        rows, ids = tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, None], tf.int32)
        weights = [tf.TensorSpec(variable.shape) for variable in self._model.weights]
        return traced_once(self._segment, [weights, ids, rows, self._memory_spec()])

    def _segment(self, weights, token_ids, kept_lengths, memory):
        """Runs one segment: hidden states, and the memory with the kept tokens."""
        if not self.config.has_relative_positions:
            kept_lengths = kept_lengths[0]  # all are equal
        with self._with_weights(weights):
            return self._engine.read(token_ids, memory, lengths=kept_lengths)

    def _read(
        self,
        weights: list[tf.Tensor],
        token_ids: tf.Tensor,
        lengths: tf.Tensor,
        memory: Memory,
        carry: tf.Tensor,
        use: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor],
    ) -> tuple[tf.Tensor, Memory]:
        """Reads token ids `(B, T)`, padded on the right, one model segment at a time.

        `lengths` are the tokens to remember, 0 to `T`; with absolute positions all must be equal.
        `use` maps `carry`, the hidden states `(B, S, D)` of a segment and the index of its first
        token to the next `carry`. Returns the last `carry` and memory.
        """
        num_tokens = tf.shape(token_ids)[1]
        if not self.config.has_relative_positions:
            lengths = _of_one_length(lengths)

        def body(start, memory, carry):
            stop = tf.minimum(start + self.config.segment_length, num_tokens)
            kept = tf.clip_by_value(lengths - start, 0, stop - start)
            hidden, memory = self._read_segment(weights, token_ids[:, start:stop], kept, memory)
            return stop, memory, use(carry, hidden, start)

        state = (tf.constant(0), memory, carry)
        shapes = tf.nest.map_structure(lambda each: each.shape, state)
        _, memory, carry = tf.while_loop(
            lambda start, *_: start < num_tokens,
            body,
            state,
            # `carry` may grow from segment to segment.
            (*shapes[:2], tf.TensorShape([None, None])),
        )
        return carry, memory

    def initial_memory(self, num_rows: int) -> Memory:
        """Returns the memory of rows that have read nothing."""
        return self._model.initial_memory(num_rows)

    def _score(self, token_ids, target_ids, lengths, memory):
        """Returns nats of the targets `(B, T)`, zeros after a row's length, and the next memory."""
        weights = self._weights.values()

        def use(nll, hidden, start):
            stop = start + tf.shape(hidden)[1]
            with self._with_weights(weights):
                new = self._model.negative_log_likelihood(hidden, target_ids[:, start:stop])
            return tf.concat([nll, new], axis=1)

        nothing = tf.zeros([tf.shape(token_ids)[0], 0])
        nll, memory = self._read(weights, token_ids, lengths, memory, nothing, use)
        nll = tf.where(tf.sequence_mask(lengths, tf.shape(nll)[1]), nll, 0.0)
        return guards.finite(nll, "nll"), memory

    def _next_token(self, token_ids, lengths, kept_lengths, memory):
        """Returns likely next tokens of each row, `(B, C)`, and the memory of the kept tokens."""
        weights = self._weights.values()
        last, memory = self._pooled(weights, token_ids, lengths, kept_lengths, memory, "last")
        with self._with_weights(weights):
            log_probs = self._model.log_probs_of(last[:, None])[:, 0]
        log_probs, candidate_ids = tf.math.top_k(log_probs, self.num_candidates)
        return candidate_ids, guards.finite(tf.exp(log_probs), "probabilities"), memory

    def pool(self, token_ids: tf.Tensor, lengths: tf.Tensor, pooling: str) -> tf.Tensor:
        """Reads whole texts of 1 to `T` tokens and returns a vector `(B, D)` of each."""
        weights, memory = self._weights.values(), self.initial_memory(tf.shape(token_ids)[0])
        return self._pooled(weights, token_ids, lengths, lengths, memory, pooling)[0]

    def _pooled(self, weights, token_ids, lengths, kept_lengths, memory, pooling):
        """Returns the last state or the mean of each row, `(B, D)`, and the next memory."""

        def last_of(last, hidden, start):
            place = lengths - 1 - start
            is_here = (place >= 0) & (place < tf.shape(hidden)[1])
            here = tf.gather(hidden, tf.where(is_here, place, 0), batch_dims=1)
            return tf.where(is_here[:, None], here, last)

        def mean_of(total, hidden, start):
            places = start + tf.range(tf.shape(hidden)[1])
            share = tf.where(
                places < lengths[:, None], 1.0 / tf.cast(lengths, tf.float32)[:, None], 0.0
            )
            return total + tf.reduce_sum(hidden * share[..., None], axis=1)

        use = last_of if pooling == "last" else mean_of
        nothing = tf.zeros([tf.shape(token_ids)[0], self.config.hidden_dim])
        pooled, memory = self._read(weights, token_ids, kept_lengths, memory, nothing, use)
        return tf.ensure_shape(pooled, [None, self.config.hidden_dim]), memory

    def _generate(self, token_ids, lengths, settings, memory):
        """Generates tokens; returns them, their nats, their counts and the memory."""
        weights = self._weights.values()
        nothing = tf.zeros([0, 0])
        read_ids = token_ids[:, : tf.reduce_max(lengths) - 1]
        _, memory = self._read(
            weights, read_ids, lengths - 1, memory, nothing, lambda carry, *_: carry
        )
        with self._with_weights(weights):
            return self._written(token_ids, lengths, settings, memory)

    def _written(self, token_ids, lengths, settings, memory):
        """Writes after the last token of each row, the only one that memory does not contain."""
        width, num_layers = tf.reduce_max(settings.max_tokens), len(memory.states)
        constants = self._writing_engine.constants(1)

        def step(token_ids, is_active, recent):
            index, inputs, state = recent
            hidden, state = self._writing_engine.hidden_states(
                token_ids[:, None], state, constants=constants
            )
            # The inputs of each layer, from which the memory is made.
            inputs = inputs.write(index, tf.stack([each[:, 0] for each in hidden[:-1]]))
            return self._model.log_probs_of(hidden[-1])[:, 0], (index + 1, inputs, state)

        rules = TokenRules(
            RandomSampler(settings.temperature, settings.top_k, settings.top_p, settings.min_p),
            RepetitionPenalty(settings.repetition_penalty),
            settings.stop_token_ids,
            self._excluded_token_ids,
        )
        pending = tf.gather(token_ids, lengths - 1, batch_dims=1)
        zeros = tf.zeros_like(pending)
        inputs = tf.TensorArray(
            tf.float32, size=0, dynamic_size=True, element_shape=[num_layers, None, None]
        )
        state = DecodingState(
            pending=pending,
            is_finished=tf.equal(zeros, 1),
            is_used=self._used(token_ids, lengths),
            lengths=zeros,
            position=tf.constant(0),
            recent=(tf.constant(0), inputs, self._writing_engine.adopt(memory)),
        )
        written, state = write_tokens(
            step, rules, settings.seed, state, settings.max_tokens, width, with_nats=True
        )
        token_ids, nll = (tf.transpose(each) for each in written)
        is_written = tf.sequence_mask(state.lengths, width)
        token_ids, nll = tf.where(is_written, token_ids, 0), tf.where(is_written, nll, 0.0)
        inputs = tf.unstack(tf.transpose(state.recent[1].stack(), [1, 2, 0, 3]))
        memory = memory.extended(inputs, state.lengths)
        return token_ids, guards.finite(nll, "nll"), state.lengths, memory

    def _used(self, token_ids, lengths):
        """Marks the tokens that occur in each row, bool `(B, V)`."""
        num_rows, num_tokens = tf.unstack(tf.shape(token_ids))
        rows = tf.tile(tf.range(num_rows)[:, None], [1, num_tokens])
        # After a row's end, repeat its first token.
        ids = tf.where(tf.sequence_mask(lengths, num_tokens), token_ids, token_ids[:, :1])
        is_used = tf.zeros([num_rows, self.config.vocabulary_size], tf.bool)
        places = tf.stack([rows, ids], axis=-1)
        return tf.tensor_scatter_nd_update(is_used, places, tf.ones_like(ids, tf.bool))


def _of_one_length(lengths: tf.Tensor) -> tf.Tensor:
    return guards.refuse_unless(
        tf.reduce_all(tf.equal(lengths, lengths[:1])),
        lambda: tf.strings.join(
            [
                "lengths are ",
                tf.strings.reduce_join(tf.strings.as_string(lengths), separator=", "),
                "; a model with absolute positions reads rows of one length.",
            ]
        ),
        lengths,
    )


_POSITIVE = ("max_text_bytes", "max_input_tokens", "max_output_tokens", "num_candidates")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Storage of the weights, and limits of a request.

    Raises:
        ValueError: If a limit is not positive, or a dtype is unknown.
    """

    weights: Literal["float32", "bfloat16", "int8"] = "float32"
    """Storage of matrices; the arithmetic is always float32."""
    memory_dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of memory in requests and answers."""
    max_text_bytes: int = 1 << 16
    """The longest text of a request, in bytes."""
    max_input_tokens: int = 1 << 16
    """The most tokens per row of a request."""
    max_output_tokens: int = 1024
    """The most tokens that a request may ask for."""
    num_candidates: int = 16
    """Tokens whose probability `next_token` gives, limited by the vocabulary."""

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise ValueError(f"`{name}` must be positive. Received: {getattr(self, name)}")
        if self.weights not in ("float32", "bfloat16", "int8"):
            raise ValueError(
                '`weights` must be "float32", "bfloat16" or "int8". '
                f"Received: weights={self.weights!r}"
            )
        if self.memory_dtype not in ("float32", "bfloat16"):
            raise ValueError(
                '`memory_dtype` must be "float32" or "bfloat16". '
                f"Received: memory_dtype={self.memory_dtype!r}"
            )
