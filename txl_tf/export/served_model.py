"""Model of an export: its stored weights, and the functions that all signatures share.

Shape letters used in this module: B rows, V vocabulary, S tokens to write, M memory length,
D hidden width, L layers, T tokens, K ids that end a row.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from txl_tf.config.generation import SamplingConfig
from txl_tf.export import guards
from txl_tf.export.graph_texts import GraphTexts, cut_at, traced_once
from txl_tf.generation.decoding import TOKENS_PER_CHECK, DecodingState, write_tokens
from txl_tf.generation.token_rules import PENALTIES, TokenRules, token_bias
from txl_tf.inference.engine import InferenceEngine
from txl_tf.models.graph_reader import read_in_graph
from txl_tf.models.memory import Memory
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.samplers import SETTINGS

# Biases and norms are a thousandth of the weights, and each matters more.
_MIN_MATRIX_ELEMENTS = 4096
# A float32 scale takes as many bytes as four int8 numbers.
_MIN_NUMBERS_PER_SCALE = 32
_LARGEST_INT8 = 127


class ServedWeights(tf.Module):
    """Weights of a model as an export stores them, optionally in fewer bits.

    In int8 a matrix has one scale per row or one per column; the choice is the one with the smaller
    squared error. A weight is the scale times a number in [-127, 127]. `values` are always float32.
    """

    def __init__(self, weights: Mapping[str, np.ndarray], stored_as: str) -> None:
        super().__init__(name="weights")
        # The keys are paths of the weights, which also name them in the SavedModel.
        self._numbers: dict[str, tf.Variable] = {}
        self._scales: dict[str, tf.Variable] = {}
        for path, weight in weights.items():
            numbers, scale = _numbers_and_scale(np.asarray(weight, np.float32), stored_as)
            name = path.replace("/", ".")
            self._numbers[path] = tf.Variable(numbers, trainable=False, name=name)
            if scale is not None:
                self._scales[path] = tf.Variable(scale, trainable=False, name=f"{name}.scale")

    @property
    def paths(self) -> list[str]:
        """Paths of the weights."""
        return list(self._numbers)

    def values(self) -> list[tf.Tensor]:
        """Returns the weights, float32, in the order of `paths`."""
        return [
            tf.cast(numbers, tf.float32) * self._scales.get(path, 1.0)
            if numbers.dtype != tf.float32
            else numbers.read_value()
            for path, numbers in self._numbers.items()
        ]


def _numbers_and_scale(array: np.ndarray, stored_as: str) -> tuple[Any, np.ndarray | None]:
    if array.ndim != 2 or array.size < _MIN_MATRIX_ELEMENTS or stored_as == "float32":
        return array, None
    if stored_as == "bfloat16":
        return tf.cast(array, tf.bfloat16), None
    # Scales along a short axis would be nearly as many as its numbers.
    axes = [axis for axis in (0, 1) if array.shape[axis] >= _MIN_NUMBERS_PER_SCALE]
    if not axes:
        return array, None
    choices = [_quantized(array, axis) for axis in axes]
    return min(choices, key=lambda choice: np.square(choice[0] * choice[1] - array).sum())


def _quantized(array: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    scale = np.abs(array).max(axis=axis, keepdims=True) / _LARGEST_INT8
    scale = np.where(scale == 0, 1.0, scale).astype(np.float32)
    return np.round(array / scale).astype(np.int8), scale


class ServedModel:
    """Functions that signatures share, each traced once, so that an export has one copy.

    Only the names and shapes of the model's weights matter; `weights` are in their order.
    `excluded_token_ids`, and the penalties and the `logit_bias` of `completion`, hold for all
    texts. Stop texts need `texts`. The settings of a request are tensors `(B,)` by the names of
    `GenerationConfig`, `stop` `(B, K)`, where "" is no text, and `stop_token_ids` `(B, K)`, where
    -1 is no id.
    """

    def __init__(
        self,
        model: TransformerXL,
        weights: ServedWeights,
        excluded_token_ids: Sequence[int] = (),
        completion: SamplingConfig | None = None,
        texts: GraphTexts | None = None,
    ) -> None:
        if model.compute_dtype != "float32" or [v.path for v in model.weights] != weights.paths:
            # Weights may have been rounded, or adapters merged into them.
            model = TransformerXL(model.config, dtype="float32")
        self.config = model.config
        self._model = model
        self._weights = weights
        self._texts = texts
        completion = completion or SamplingConfig()
        self._counts_uses = completion.has_penalty
        self._rules = {name: getattr(completion, name) for name in PENALTIES}
        size = self.config.vocabulary_size
        self._rules["bias"] = token_bias(completion, excluded_token_ids, size)
        # Hidden states are half the size of keys and values on the wire.
        self._engine = InferenceEngine(model, keeps_states=True)
        self._writing_engine = InferenceEngine(model)
        rows, ids = tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, None], tf.int32)
        states = tf.TensorSpec([None, self.config.effective_memory_length, self.config.hidden_dim])
        memory = Memory((states,) * self.config.num_layers, rows)
        values = [tf.TensorSpec(variable.shape) for variable in model.weights]
        types = {"max_tokens": "int32", **SETTINGS, "seed": "int32"}
        settings = {name: tf.TensorSpec([None], dtype) for name, dtype in types.items()}
        settings |= {"stop_token_ids": ids, "stop": tf.TensorSpec([None, None], tf.string)}
        self._read_segment = traced_once(self._segment, [values, ids, rows, memory])
        self.score = traced_once(self._score, [ids, ids, rows, memory])
        self.generate = traced_once(self._generate, [ids, rows, settings, memory])

    def _with_weights(self, weights: list[tf.Tensor]) -> keras.StatelessScope:
        """Returns a scope in which the model has these weights."""
        return keras.StatelessScope(
            state_mapping=list(zip(self._model.weights, weights, strict=True))
        )

    def _segment(self, weights, token_ids, kept_lengths, memory):
        """Runs one segment: hidden states, and the memory with the kept tokens."""
        with self._with_weights(weights):
            return self._engine.read(token_ids, memory, lengths=kept_lengths)

    def _read(
        self,
        weights: list[tf.Tensor],
        token_ids: tf.Tensor,
        lengths: tf.Tensor,
        memory: Memory,
        carry: Any = (),
        use: Callable[..., Any] = lambda carry, *_: carry,
    ) -> tuple[Memory, Any]:
        """Reads token ids `(B, T)`, padded on the right, one model segment at a time.

        `lengths` are the tokens to remember, 0 to `T`. `use` maps `carry`, the hidden states
        of a segment with T tokens, `(B, T, D)`, and the place of its first token to the next
        `carry`, of equal shape. Returns the last memory and `carry`.
        """

        def read_segment(start, segment, state):
            memory, carry = state
            num_remembered = tf.clip_by_value(lengths - start, 0, tf.shape(segment)[1])
            hidden, memory = self._read_segment(weights, segment, num_remembered, memory)
            return memory, use(carry, hidden, start)

        return read_in_graph(read_segment, token_ids, (memory, carry), self.config.segment_length)

    def initial_memory(self, num_rows: int | tf.Tensor) -> Memory:
        """Returns the memory of rows that have read nothing."""
        return self._model.initial_memory(num_rows)

    def _score(self, token_ids, target_ids, lengths, memory):
        """Returns nats of the targets `(B, T)`, zeros after a row's length, and the next memory."""
        weights, num_tokens = self._weights.values(), tf.shape(token_ids)[1]
        # The last segment may be longer than the rest of the targets.
        target_ids = tf.pad(target_ids, [[0, 0], [0, self.config.segment_length]])

        def use(nll, hidden, start):
            stop = start + tf.shape(hidden)[1]
            with self._with_weights(weights):
                new = self._model.negative_log_likelihood(hidden, target_ids[:, start:stop])
            return tf.pad(new, [[0, 0], [start, tf.shape(nll)[1] - stop]]) + nll

        nothing = tf.zeros(tf.shape(target_ids))
        memory, nll = self._read(weights, token_ids, lengths, memory, nothing, use)
        nll = tf.where(tf.sequence_mask(lengths, num_tokens), nll[:, :num_tokens], 0.0)
        return guards.finite(nll, "nll"), memory

    def pool(self, token_ids: tf.Tensor, lengths: tf.Tensor, pooling: str) -> tf.Tensor:
        """Reads whole texts of 1 to `T` tokens; returns their last states or means, `(B, D)`."""

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
        num_rows = tf.shape(token_ids)[0]
        nothing, memory = (
            tf.zeros([num_rows, self.config.hidden_dim]),
            self.initial_memory(num_rows),
        )
        _, pooled = self._read(self._weights.values(), token_ids, lengths, memory, nothing, use)
        return pooled

    def _generate(self, token_ids, lengths, settings, memory):
        """Writes after rows `(B, T)` of 1 or more tokens.

        Returns tokens `(B, S)` and their nats `(B, S)`, zeros after a row's end, counts `(B,)`, and
        the memory of all tokens but the last of each row.
        """
        weights = self._weights.values()
        read_ids = token_ids[:, : tf.reduce_max(lengths) - 1]
        memory, _ = self._read(weights, read_ids, lengths - 1, memory)
        with self._with_weights(weights):
            return self._write(token_ids, lengths, settings, memory)

    def _write(self, token_ids, lengths, settings, memory):
        """Writes after the last token of each row, the only one that memory does not contain."""
        constants, max_tokens = self._writing_engine.constants(1), settings["max_tokens"]
        width, stop = tf.reduce_max(max_tokens), settings["stop"]

        def step(token_ids, _, step_state):
            index, inputs, state = step_state
            hidden, state = self._writing_engine.hidden_states(
                token_ids[:, None], state, constants=constants
            )
            # The inputs of each layer, from which the memory is made.
            inputs = inputs.write(index, tf.stack([each[:, 0] for each in hidden[:-1]]))
            return self._model.logits_of(hidden[-1])[:, 0], (index + 1, inputs, state)

        def write(state):
            num_tokens = tf.minimum(max_tokens - state.index, most)
            state = write_tokens(step, rules, settings["seed"], state, num_tokens)
            is_over = state.is_finished | (state.index >= max_tokens)
            if self._texts is not None:
                is_over |= tf.cond(
                    has_stops,
                    lambda: self._has_new_stop(last_ids, state, stop),
                    lambda: tf.zeros_like(is_over),
                )
            return (state._replace(is_finished=is_over),)

        ends = settings["stop_token_ids"]
        rules = TokenRules.of_settings({**settings, **self._rules}, stop_token_ids=ends)
        has_stops = tf.reduce_any(stop != "")
        most = tf.where(has_stops, TOKENS_PER_CHECK, width)
        inputs = tf.TensorArray(
            tf.float32, size=width, element_shape=[len(memory.states), None, self.config.hidden_dim]
        )
        last_ids = tf.gather(token_ids, lengths - 1, batch_dims=1)
        step_state = tf.constant(0), inputs, self._writing_engine.adopt(memory)
        uses = self._uses(token_ids, lengths) if self._counts_uses else None
        state = DecodingState.begin(last_ids, step_state, width, uses=uses, with_nats=True)
        (state,) = tf.while_loop(
            lambda state: tf.logical_not(tf.reduce_all(state.is_finished)), write, (state,)
        )
        steps, inputs, _ = state.step_state
        memory = memory.extended(
            tf.unstack(tf.transpose(inputs.gather(tf.range(steps)), [1, 2, 0, 3])), state.lengths
        )
        is_written = tf.sequence_mask(state.lengths, width)
        new_ids, nll = (
            tf.where(is_written, tf.transpose(each), 0) for each in (state.output_ids, state.nats)
        )
        return new_ids, guards.finite(nll, "nll"), state.lengths, memory

    def _has_new_stop(self, last_ids, state, stop):
        """Marks the rows in which one of the newest tokens completes a stop text, bool `(B,)`."""
        # Each token has at least one byte, so a stop text has at most as many tokens as bytes.
        count = TOKENS_PER_CHECK + tf.reduce_max(tf.strings.length(stop))
        start = tf.maximum(state.index - count, 0)
        # Rows that ended have `NOTHING`, which has no text. Any token can replace it, because a row
        # that ended stays finished.
        tokens = tf.maximum(tf.concat([last_ids[None], state.output_ids], axis=0), 0)
        pair = tokens[start : start + 1], tokens[start + 1 : state.index + 1]
        rows = (
            tf.RaggedTensor.from_tensor(tf.transpose(each), row_splits_dtype=tf.int32)
            for each in pair
        )
        texts = self._texts.text_after(*rows)
        return tf.not_equal(cut_at(texts, stop), texts)

    def _uses(self, token_ids, lengths):
        """Returns the uses of tokens after rows were read, int32 `(B, V)`."""
        num_rows, num_tokens = tf.unstack(tf.shape(token_ids))
        rows = tf.tile(tf.range(num_rows)[:, None], [1, num_tokens])
        # After a row's end, repeat its first token.
        ids = tf.where(tf.sequence_mask(lengths, num_tokens), token_ids, token_ids[:, :1])
        uses = tf.zeros([num_rows, self.config.vocabulary_size], tf.int32)
        return tf.tensor_scatter_nd_update(uses, tf.stack([rows, ids], axis=-1), tf.ones_like(ids))
