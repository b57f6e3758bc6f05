"""Signatures that take and return texts, with the tokenizer in the graph.

Shape letters used in this module: B rows, T tokens, C candidates.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.export import guards
from txl_tf.export.sampling import Sampling
from txl_tf.export.served_model import ExportOptions, ServedModel, traced_once
from txl_tf.export.token_signatures import TokenSignatures, WireMemory, signature


class GraphTexts:
    """Checks of texts and their tokenization in the graph.

    The root of the export must own `tokenizer`, the in-graph tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer, options: ExportOptions, vocabulary_size: int) -> None:
        self.tokenizer: Any = tokenizer.graph_tokenizer()
        self._only_utf8 = tokenizer.kind != "bytes"
        self._max_bytes = options.max_text_bytes
        self._vocabulary_size = vocabulary_size

    def checked(self, texts: tf.Tensor, name: str) -> tf.Tensor:
        """Refuses texts that are too long or not UTF-8; returns the others, `(B,)`."""
        return guards.texts(texts, name, self._max_bytes, only_utf8=self._only_utf8)

    def ids_of(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the int32 ids of checked texts; refuses ids outside the vocabulary."""
        ids = self.tokenizer.tokenize(texts)
        values = guards.in_range(ids.values, "tokens of texts", 0, self._vocabulary_size - 1)
        splits = tf.cast(ids.row_splits, tf.int32)
        return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


class TextSignatures:
    """Signatures on text, which check requests and answer them.

    The memory does not yet contain the newest token of a text: the next token is predicted from
    it. So a text's state is its memory and its last token, which the next request sends as
    `previous_token_ids`. Outputs of text end in `_bytes`, because tokens may split characters:
    servers encode such outputs in base64 where the wire has no bytes.
    """

    def __init__(
        self,
        served: ServedModel,
        tokens: TokenSignatures,
        memory: WireMemory,
        texts: GraphTexts,
    ) -> None:
        self._served = served
        self._tokens = tokens
        self._memory = memory
        self._texts = texts
        strings = tf.TensorSpec(None, tf.string)
        rows, padded = tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, None], tf.int32)
        self.ids_of = traced_once(self._tokenized, [strings])
        self.text_of = traced_once(self._detokenized, [padded, rows])
        self._state_of = traced_once(
            self._checked_state, [strings, tf.TensorSpec(None, tf.int32), *memory.specs()]
        )

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Returns a `tf.function` by name; a model without memory has no `generate_text`."""
        texts = tf.TensorSpec(None, tf.string, "texts")
        ids = tf.TensorSpec(None, tf.int32, "token_ids")
        lengths = tf.TensorSpec(None, tf.int32, "lengths")
        state = [tf.TensorSpec(None, tf.int32, "previous_token_ids"), *self._memory.specs()]
        sampling = Sampling.specs()
        found = {
            "tokenize": signature(self.tokenize, [texts]),
            "detokenize": signature(self.detokenize, [ids, lengths]),
            "score_text": signature(self.score_text, [texts, *state]),
            "next_token_text": signature(self.next_token_text, [texts, *state]),
        }
        if self._memory.memory_length:
            found["generate_text"] = signature(self.generate_text, [texts, *sampling, *state])
        return found

    def tokenize(self, texts):
        """Turns texts `(B,)` into `token_ids` `(B, T)`, padded with zeros, and `lengths`."""
        ids = self.ids_of(texts)
        return {"token_ids": ids.to_tensor(), "lengths": ids.row_lengths()}

    def detokenize(self, token_ids, lengths):
        """Turns token ids `(B, T)` and their lengths `(B,)` into `texts_bytes`, string `(B,)`."""
        token_ids, lengths, _ = self._tokens.rows_of_ids(token_ids, lengths, 0)
        return {"texts_bytes": self.text_of(token_ids, lengths)}

    def score_text(self, texts, previous_token_ids, memory_states, memory_valid_length):
        """Scores each token of texts `(B,)` in nats.

        `previous_token_ids` `(B,)` are -1 for new texts, whose first token is not scored. Returns
        `token_ids` and `nll`, `(B, T)`, `lengths`, `total_nll` and `num_scored`, `(B,)`, and the
        next state.
        """
        ids, rows, memory = self._state_of(
            texts, previous_token_ids, memory_states, memory_valid_length
        )
        lengths = tf.maximum(rows.row_lengths() - 1, 0)
        padded = rows.to_tensor()
        nll, memory = self._served.score(padded[:, :-1], padded[:, 1:], lengths, memory)
        nll = tf.RaggedTensor.from_tensor(nll, lengths=lengths, row_splits_dtype=tf.int32)
        unscored = tf.zeros(tf.reduce_sum(ids.row_lengths() - lengths))
        unscored = tf.RaggedTensor.from_row_lengths(unscored, ids.row_lengths() - lengths)
        return {
            "token_ids": ids.to_tensor(),
            "lengths": ids.row_lengths(),
            "nll": tf.concat([unscored, nll], axis=1).to_tensor(),
            "total_nll": tf.reduce_sum(nll, axis=1),
            "num_scored": lengths,
            "last_token_ids": _last_of(rows),
            **self._memory.give(memory),
        }

    def next_token_text(self, texts, previous_token_ids, memory_states, memory_valid_length):
        """Returns likely next tokens of texts `(B,)`, each `(B, C)`, and the next state."""
        _, rows, memory = self._state_of(
            texts, previous_token_ids, memory_states, memory_valid_length
        )
        rows = not_empty(rows)
        lengths = rows.row_lengths()
        candidate_ids, probabilities, memory = self._served.next_token(
            rows.to_tensor(), lengths, lengths - 1, memory
        )
        flat = tf.reshape(candidate_ids, [-1, 1])
        texts = self.text_of(flat, tf.ones_like(flat[:, 0]))
        return {
            "candidate_ids": candidate_ids,
            "candidate_texts_bytes": tf.reshape(texts, tf.shape(candidate_ids)),
            "probabilities": probabilities,
            "last_token_ids": _last_of(rows),
            **self._memory.give(memory),
        }

    def generate_text(self, texts, *sampling_and_state):
        """Generates after each text; arguments are the fields of `Sampling`, then the state.

        Returns `texts_bytes` `(B,)` without the prompt, `token_ids` and `nll`, `(B, S)`,
        `lengths` `(B,)`, and the next state.
        """
        *sampling, previous_token_ids, memory_states, memory_valid_length = sampling_and_state
        _, rows, memory = self._state_of(
            texts, previous_token_ids, memory_states, memory_valid_length
        )
        rows = not_empty(rows)
        settings = self._tokens.checked_sampling(Sampling(*sampling), rows.nrows())
        written, nll, counts, memory = self._served.generate(
            rows.to_tensor(), rows.row_lengths(), settings, memory
        )
        return {
            "texts_bytes": self.text_of(written, counts),
            "token_ids": written,
            "lengths": counts,
            "nll": nll,
            "last_token_ids": tf.gather(written, counts - 1, batch_dims=1),
            **self._memory.give(memory),
        }

    def prompt_ids_of(self, texts):
        """Returns the ids of unfinished texts: without the token for the end of the last line."""
        ids = self.ids_of(texts)
        if not self._texts.tokenizer.marks_lines:
            return ids
        is_line = tf.strings.regex_full_match(tf.reshape(texts, [-1]), r"(?s).*[\n\r]")
        is_open = tf.cast(tf.logical_not(is_line), tf.int32)
        lengths = tf.maximum(ids.row_lengths() - is_open, 0)
        padded = ids.to_tensor()
        return tf.RaggedTensor.from_tensor(padded, lengths=lengths, row_splits_dtype=tf.int32)

    def _tokenized(self, texts):
        return self._texts.ids_of(self._texts.checked(texts, "texts"))

    def _checked_state(self, texts, previous_token_ids, memory_states, memory_valid_length):
        """Returns the ids of the texts, these with the previous token in front, and the memory."""
        ids = self.ids_of(texts)
        num_rows = ids.nrows()
        previous = guards.row_vector(previous_token_ids, "previous_token_ids", num_rows)
        highest = self._served.config.vocabulary_size - 1
        previous = guards.in_range(previous, "previous_token_ids", -1, highest)
        has_previous = previous >= 0
        before = tf.RaggedTensor.from_row_lengths(
            tf.boolean_mask(previous, has_previous), tf.cast(has_previous, tf.int32)
        )
        memory = self._memory.take(memory_states, memory_valid_length, num_rows)
        return ids, tf.concat([before, ids], axis=1), memory

    def _detokenized(self, token_ids, lengths):
        lengths = tf.cast(lengths, tf.int64)
        rows = tf.RaggedTensor.from_tensor(token_ids, lengths=lengths)
        return self._texts.tokenizer.detokenize(rows)


def _last_of(rows: tf.RaggedTensor) -> tf.Tensor:
    """Returns the last token of each row, -1 for an empty one."""
    return tf.reduce_max(rows[:, -1:].to_tensor(default_value=-1, shape=[None, 1]), axis=1)


def not_empty(
    rows: tf.RaggedTensor,
    fewest: int = 1,
    none: str = "no tokens, and there is no previous token.",
) -> tf.RaggedTensor:
    """Refuses rows of fewer tokens; `fewest` is 1, or 2 where only predicted tokens are scored."""
    lengths = rows.row_lengths()
    is_short = lengths < fewest
    place = tf.argmax(tf.cast(is_short, tf.uint8))
    few = "fewer than two tokens: the first has nothing before it that predicts it."
    values = guards.refuse_unless(
        tf.logical_not(tf.reduce_any(is_short)),
        lambda: tf.strings.join(
            ["texts[", tf.strings.as_string(place), "] has ", none if fewest == 1 else few]
        ),
        rows.values,
    )
    return rows.with_values(values)
