"""Signatures of an export: checks of requests, and answers by a `ServedModel`.

Shape letters used in this module: B rows, M memory length, D hidden width, L layers, T tokens,
S tokens to write, C classes, K stop texts or ids.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.config.base import FrozenConfig, positive
from txl_tf.config.generation import GenerationConfig
from txl_tf.config.model import ModelConfig
from txl_tf.config.task import TaskConfig
from txl_tf.export import guards
from txl_tf.export.graph_texts import GraphTexts, cut_at, long_enough
from txl_tf.export.served_model import ServedModel, ServedWeights
from txl_tf.generation.decoding import NOTHING
from txl_tf.models.memory import Memory
from txl_tf.samplers import SETTINGS

STATES = "memory_states"
VALID_LENGTH = "memory_valid_length"
NEW_SEED = -(2**31)
"""Seed of a request that stands for a new one in each row."""
_SETTINGS = ("max_tokens", *SETTINGS, "seed")
# exp() of 89 overflows float32.
_LARGEST_MEAN_NATS = 88.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions(FrozenConfig):
    """Storage of the weights, and limits of a request.

    Raises:
        ValueError: If a limit is not positive, or a dtype is unknown.
    """

    weights: Literal["float32", "bfloat16", "int8"] = "float32"
    """Storage of matrices; the arithmetic is always float32."""
    max_text_bytes: Annotated[int, positive()] = 1 << 16
    """The longest text of a request, in bytes."""
    max_input_tokens: Annotated[int, positive()] = 1 << 16
    """The most tokens per row of a request."""
    max_output_tokens: Annotated[int, positive()] = 1024
    """The most tokens that a request may ask for."""


class Input(NamedTuple):
    """Input of a signature. Clients see `shape`; an input whose default is `None` is required."""

    dtype: tf.DType | str
    shape: list[int]
    default: Any = None


def known_inputs(config: ModelConfig, completion: GenerationConfig) -> dict[str, Input]:
    """Returns all inputs by name, with the defaults of `completion`; a scalar is for all rows."""
    memory_shape = [config.num_layers, config.effective_memory_length, config.hidden_dim]
    return {
        "texts": Input(tf.string, [-1]),
        "second_texts": Input(tf.string, [-1], ""),
        "token_ids": Input(tf.int32, [-1, -1]),
        "target_ids": Input(tf.int32, [-1, -1]),
        "lengths": Input(tf.int32, [-1], -1),  # all tokens of each row
        "max_tokens": Input(tf.int32, [-1], completion.max_tokens),
        **{name: Input(dtype, [-1], getattr(completion, name)) for name, dtype in SETTINGS.items()},
        "seed": Input(tf.int32, [-1], NEW_SEED if completion.seed is None else completion.seed),
        "stop": Input(tf.string, [-1, -1], [completion.stop or [""]]),
        "stop_token_ids": Input(tf.int32, [-1, -1], [[NOTHING]]),
        STATES: Input(tf.float32, [-1, *memory_shape], np.zeros([0])),
        VALID_LENGTH: Input(tf.int32, [-1], 0),
    }


def signature(
    function: Callable[..., Any], inputs: dict[str, Input], names: tuple[str, ...]
) -> Any:
    """Returns a `tf.function` of named inputs. Guards check their shapes, so these are open."""

    def signature_function(*tensors):
        return function(*tensors)

    specs = [tf.TensorSpec(None, inputs[name].dtype, name) for name in names]
    return tf.function(signature_function, input_signature=specs, autograph=False)


def checked_settings(
    values: Any, stop_token_ids: tf.Tensor, stop: tf.Tensor, max_output_tokens: int
) -> dict[str, tf.Tensor]:
    """Returns checked settings of all rows; `values` are in the order of `_SETTINGS`."""
    num_rows = tf.shape(stop_token_ids)[0]
    ranges = {
        "max_tokens": (1, max_output_tokens),
        "temperature": (0.0, tf.float32.max),
        "top_k": (0, tf.int32.max),
        "top_p": (np.float32(1e-30), 1.0),  # 0 would leave no token
        "min_p": (0.0, 1.0),
    }
    rows = {
        name: guards.row_vector(value, name, num_rows)
        for name, value in zip(_SETTINGS, values, strict=True)
    }
    for name, (lowest, highest) in ranges.items():
        rows[name] = guards.in_range(rows[name], name, lowest, highest)
    # Neither a seed of the exporting program nor a state of the server may decide a new seed.
    new_seeds = tf.raw_ops.NonDeterministicInts(shape=num_rows[None], dtype=tf.int32)
    rows["seed"] = tf.where(rows["seed"] == NEW_SEED, new_seeds, rows["seed"])
    # Each row needs at least one stop text; an empty one has no effect.
    stop = tf.concat([stop, tf.fill([num_rows, 1], "")], axis=1)
    return {**rows, "stop_token_ids": stop_token_ids, "stop": stop}


class Signatures:
    """Signatures of an export, which answer each row independently of the other rows.

    Rows may differ in length. The signatures of token ids take memory and return the next memory.
    On the wire memory is one tensor of hidden states `(B, L, M, D)` and the valid lengths `(B,)`.
    Rows that have read nothing may send an empty vector, the default. `M` is 0 for a model without
    recurrence. `head` holds the weights of the head of `task` in their order.
    """

    def __init__(
        self,
        served: ServedModel,
        inputs: dict[str, Input],
        options: ExportOptions,
        texts: GraphTexts | None = None,
        head: ServedWeights | None = None,
        task: TaskConfig | None = None,
    ) -> None:
        self._served, self._inputs, self._options = served, inputs, options
        self._texts, self._head, self._task = texts, head, task

    def functions(self) -> dict[str, Any]:
        """Returns a `tf.function` by name, the default first.

        With a tokenizer the default takes only texts, because a server's REST interface asks for
        all inputs. A model without memory continues nothing.
        """
        inputs = self._inputs
        if self._task is not None:
            names = ("texts", "second_texts") if self._task.has_pairs else ("texts",)
            return {"classify": signature(self.classify, inputs, names)}
        writes = self._served.config.effective_memory_length > 0
        functions = {}
        if writes and self._texts is not None:
            names = (*_SETTINGS, "stop")
            defaults = [tf.constant(inputs[each].default, inputs[each].dtype) for each in names]
            functions["serving_default"] = signature(
                lambda texts: self.complete(texts, *defaults), inputs, ("texts",)
            )
            functions["complete"] = signature(self.complete, inputs, ("texts", *names))
        if self._texts is not None:
            functions["perplexity"] = signature(self.perplexity, inputs, ("texts",))
        memory = (STATES, VALID_LENGTH)
        if writes:
            names = ("token_ids", "lengths", *_SETTINGS, "stop_token_ids", *memory)
            functions["generate"] = signature(self.generate, inputs, names)
        names = ("token_ids", "target_ids", "lengths", *memory)
        functions["score"] = signature(self.score, inputs, names)
        return functions

    def score(self, token_ids, target_ids, lengths, memory_states, memory_valid_length):
        """Scores targets `(B, T)` in nats. A target follows the token at the same index.

        The first `lengths` `(B,)` tokens of a row count. Returns `nll` `(B, T)`, `total_nll` and
        `num_scored` `(B,)`, and the next memory.
        """
        token_ids, lengths, num_rows = self._rows_of_ids(token_ids, lengths)
        shape = tf.shape(token_ids)
        target_ids = guards.of_shape(target_ids, "target_ids", [shape], "as token_ids")
        target_ids = tf.ensure_shape(target_ids, [None, None])
        target_ids = self._within_vocabulary(target_ids, "target_ids", lengths)
        memory = self._memory_of_request(memory_states, memory_valid_length, num_rows)
        nll, memory = self._served.score(token_ids, target_ids, lengths, memory)
        return {
            "nll": nll,
            "total_nll": tf.reduce_sum(nll, axis=1),
            "num_scored": lengths,
            **self._memory_outputs(memory),
        }

    def generate(self, token_ids, lengths, *settings_and_memory):
        """Writes after each row; arguments are the settings, `stop_token_ids` and the memory.

        Returns `token_ids` and `nll`, `(B, S)`, zeros after a row's end, `lengths` `(B,)`, and
        the memory of all tokens but the last of each row, from which to continue.
        """
        *values, stops, memory_states, memory_valid_length = settings_and_memory
        token_ids, lengths, num_rows = self._rows_of_ids(token_ids, lengths)
        highest = self._served.config.vocabulary_size - 1
        stops = guards.row_lists(stops, "stop_token_ids", num_rows)
        stops = guards.in_range(stops, "stop_token_ids", NOTHING, highest)
        no_texts = tf.fill([num_rows, 0], "")
        settings = checked_settings(values, stops, no_texts, self._options.max_output_tokens)
        memory = self._memory_of_request(memory_states, memory_valid_length, num_rows)
        new_ids, nll, counts, memory = self._served.generate(token_ids, lengths, settings, memory)
        return {"token_ids": new_ids, "lengths": counts, "nll": nll, **self._memory_outputs(memory)}

    def _rows_of_ids(self, token_ids, lengths):
        """Returns checked ids `(B, T)`, zeros after each row's end, the lengths, and `B`."""
        token_ids = guards.of_rank(token_ids, "token_ids", ("rows", "tokens"))
        token_ids = guards.not_empty(token_ids, "token_ids")
        num_rows, num_tokens = tf.unstack(tf.shape(token_ids))
        limit = self._options.max_input_tokens
        num_tokens = guards.in_range(num_tokens[None], "tokens of token_ids", 1, limit)[0]
        is_absent = tf.equal(tf.rank(lengths), 0) & tf.reduce_all(lengths < 0)
        lengths = guards.row_vector(lengths, "lengths", num_rows)
        lengths = tf.where(is_absent, num_tokens, lengths)
        lengths = guards.in_range(lengths, "lengths", 1, num_tokens)
        return self._within_vocabulary(token_ids, "token_ids", lengths), lengths, num_rows

    def _within_vocabulary(self, ids: tf.Tensor, name: str, lengths: tf.Tensor) -> tf.Tensor:
        counts = tf.sequence_mask(lengths, tf.shape(ids)[1])
        ids = guards.in_range(ids, name, 0, self._served.config.vocabulary_size - 1, counts)
        return tf.where(counts, ids, 0)

    def _memory_of_request(self, states, valid_length, num_rows):
        """Returns the checked memory of a request."""
        sizes = self._inputs[STATES].shape[1:]
        full = tf.stack([num_rows, *sizes])
        states = guards.of_shape(
            states,
            STATES,
            [full, tf.zeros([1], tf.int32)],
            "rows, layers, memory length, width; or [0] in a new session",
        )
        is_nothing = tf.equal(tf.rank(states), 1)
        states = guards.finite(states, STATES)
        highest = tf.where(is_nothing, 0, sizes[1])
        valid_length = guards.row_vector(valid_length, VALID_LENGTH, num_rows)
        valid_length = guards.in_range(valid_length, VALID_LENGTH, 0, highest)
        states = tf.cond(is_nothing, lambda: tf.zeros(full), lambda: tf.reshape(states, full))
        states = tf.ensure_shape(states, [None, *sizes])
        return Memory(tuple(tf.unstack(states, axis=1)), valid_length)

    def _memory_outputs(self, memory):
        """Returns the outputs of memory."""
        states = tf.stack(memory.states, axis=1)  # [B, L, M, D]
        states = guards.finite(states, f"next {STATES}")
        return {STATES: states, VALID_LENGTH: memory.valid_length}

    def complete(self, texts, *settings_and_stop):
        """Continues texts `(B,)` up to the first of the stop texts `(B, K)`; returns `texts`."""
        *values, stop = settings_and_stop
        rows = self._texts.prompt_ids_of(self._texts.checked(texts, "texts"))
        rows = long_enough(rows, 1, "no tokens")
        stop = guards.row_lists(stop, "stop", rows.nrows())
        end = tf.fill([rows.nrows(), 1], self._texts.end_token_id)
        settings = checked_settings(values, end, stop, self._options.max_output_tokens)
        memory = self._served.initial_memory(rows.nrows())
        ids, lengths = rows.to_tensor(), rows.row_lengths()
        ids, _, lengths, _ = self._served.generate(ids, lengths, settings, memory)
        last = tf.gather(ids, lengths - 1, batch_dims=1)
        lengths = tf.where(last == end[:, 0], lengths - 1, lengths)
        new_ids = tf.RaggedTensor.from_tensor(ids, lengths, row_splits_dtype=tf.int32)
        return {"texts": cut_at(self._texts.text_after(rows, new_ids), settings["stop"])}

    def perplexity(self, texts):
        """Scores texts `(B,)`, each of two tokens or more.

        Returns `nats`, float32 `(B,)`, of all tokens but the first; `tokens`, int32 `(B,)`, their
        number; and `perplexity`, float32 `(B,)`.
        """
        few = "fewer than two tokens: the first token has no probability"
        rows = long_enough(self._texts.ids_of(self._texts.checked(texts, "texts")), 2, few)
        lengths, ids = rows.row_lengths() - 1, rows.to_tensor()
        memory = self._served.initial_memory(rows.nrows())
        nll, _ = self._served.score(ids[:, :-1], ids[:, 1:], lengths, memory)
        nats = tf.reduce_sum(nll, axis=1)
        mean = nats / tf.cast(lengths, tf.float32)
        perplexity = tf.exp(tf.minimum(mean, _LARGEST_MEAN_NATS))
        return {"nats": nats, "tokens": lengths, "perplexity": perplexity}

    def classify(self, texts, second_texts=""):
        """Classifies texts `(B,)`, or pairs of texts.

        A scalar second text stands for all rows. Returns `labels`, string `(B,)`, and
        `probabilities` `(B, C)` in the order of the task's labels; for a regression, `values`
        `(B,)`.
        """
        ids = self._joined_ids(texts, tf.convert_to_tensor(second_texts))
        pooled = self._served.pool(ids.to_tensor(), ids.row_lengths(), self._task.pooling)  # [B, D]
        kernel, bias = self._head.values()
        outputs = tf.matmul(pooled, kernel) + bias  # [B, C]
        if self._task.labels is None:
            return {"values": guards.finite(outputs[:, 0], "values")}
        probabilities = guards.finite(tf.nn.softmax(outputs), "probabilities")
        labels = tf.gather(tf.constant(self._task.labels), tf.argmax(outputs, axis=1))
        return {"labels": labels, "probabilities": probabilities}

    def _joined_ids(self, texts, second_texts):
        """Checks texts, joins pairs as in training, and returns an int32 ragged tensor of ids."""
        texts = self._texts.checked(texts, "texts")
        second = guards.row_vector(second_texts, "second_texts", tf.shape(texts)[0])
        second = self._texts.checked(second, "second_texts")
        separator = tf.constant(self._task.separator)
        # No separator after an empty text.
        parts = [
            tf.where(tf.equal(each, ""), "", tf.strings.join([each, separator]))
            for each in (texts, second)
        ]
        rows = self._texts.ids_of(tf.strings.join(parts))
        if self._task.max_tokens is not None:
            rows = rows[:, : self._task.max_tokens]
        return long_enough(rows, 1, "no tokens")
