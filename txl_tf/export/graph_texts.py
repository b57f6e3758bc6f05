"""Texts of an export: checks, token ids, and the stop texts that they end before.

Shape letters used in this module: B rows, T tokens, K stop texts.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.export import guards
from txl_tf.export.graph_tokenizers import graph_tokenizer
from txl_tf.generation.decoding import NOTHING


class GraphTexts(tf.Module):
    """Checked texts as token ids and back; the root of the export must own it."""

    def __init__(self, tokenizer: Tokenizer, max_text_bytes: int) -> None:
        super().__init__(name="texts")
        self._tokenizer = graph_tokenizer(tokenizer)
        self.end_token_id = NOTHING if tokenizer.end_token_id is None else tokenizer.end_token_id
        self._only_utf8 = tokenizer.kind != "bytes"
        self._max_bytes = max_text_bytes
        self._vocabulary_size = tokenizer.vocabulary_size
        rows, padded_rows = tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, None], tf.int32)
        self.ids_of = traced_once(self._tokenize, [tf.TensorSpec([None], tf.string)])
        self._text_of = traced_once(self._detokenized, [padded_rows, rows])

    def checked(self, texts: tf.Tensor, name: str) -> tf.Tensor:
        """Refuses texts that are not `(B,)`, no texts at all, and texts too long or not UTF-8."""
        texts = guards.not_empty(guards.of_rank(texts, name, ("rows",)), name)
        return guards.texts(texts, name, self._max_bytes, only_utf8=self._only_utf8)

    def _tokenize(self, texts):
        """Returns the int32 ids of checked texts; refuses ids outside the vocabulary."""
        ids = self._tokenizer.tokenize(texts)
        values = guards.in_range(ids.values, "tokens of texts", 0, self._vocabulary_size - 1)
        splits = tf.cast(ids.row_splits, tf.int32)
        return tf.RaggedTensor.from_row_splits(values, splits, validate=False)

    def prompt_ids_of(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of unfinished texts: without the token for the end of the last line."""
        ids = self.ids_of(texts)
        if not self._tokenizer.marks_lines:
            return ids
        is_line = tf.strings.regex_full_match(texts, r"(?s).*[\n\r]")
        is_open = tf.cast(tf.logical_not(is_line), tf.int32)
        lengths = tf.maximum(ids.row_lengths() - is_open, 0)
        return tf.RaggedTensor.from_tensor(ids.to_tensor(), lengths, row_splits_dtype=tf.int32)

    def text_of(self, rows: tf.RaggedTensor) -> tf.Tensor:
        """Returns texts in UTF-8, with U+FFFD for invalid bytes."""
        return self._text_of(rows.to_tensor(), rows.row_lengths())

    def _detokenized(self, token_ids, lengths):
        rows = tf.RaggedTensor.from_tensor(token_ids, lengths=tf.cast(lengths, tf.int64))
        texts = self._tokenizer.detokenize(rows)
        return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")

    def text_after(self, earlier: tf.RaggedTensor, rows: tf.RaggedTensor) -> tf.Tensor:
        """Returns the texts that rows add to the earlier tokens."""
        # A tokenizer may decode a token differently after another one.
        whole, before = self.text_of(tf.concat([earlier, rows], axis=1)), self.text_of(earlier)
        start = tf.strings.length(before, unit="UTF8_CHAR")
        rest = tf.strings.length(whole, unit="UTF8_CHAR") - start
        return tf.strings.substr(whole, start, tf.maximum(rest, 0), unit="UTF8_CHAR")


def long_enough(rows: tf.RaggedTensor, fewest: int, what: str) -> tf.RaggedTensor:
    """Refuses rows of fewer tokens than `fewest`; the message says that a text has `what`."""
    is_short = rows.row_lengths() < fewest
    values = guards.refuse_where(is_short, "texts", lambda: f" has {what}.", rows.values)
    return rows.with_values(values)


def cut_at(texts: tf.Tensor, stop: tf.Tensor) -> tf.Tensor:
    """Returns texts `(B,)` up to the stop text of `(B, K)` that is complete first.

    If several stop texts are complete at the same place, the longest counts. An empty stop text
    has no effect.
    """
    # Every character of ASCII that is not a letter, digit or `_` may be escaped.
    pattern = tf.strings.regex_replace(stop, r"([^\w\x{80}-\x{10ffff}])", r"\\\1")
    whole = tf.broadcast_to(texts[:, None], tf.shape(stop))
    before = tf.map_fn(
        lambda pair: tf.strings.regex_replace(pair[0], pair[1], ""),
        [tf.reshape(each, [-1]) for each in (whole, tf.strings.join(["(?s)", pattern, ".*"]))],
        fn_output_signature=tf.TensorSpec([], tf.string),
    )
    before = tf.reshape(before, tf.shape(stop))
    starts, lengths = (tf.cast(tf.strings.length(each), tf.int64) for each in (before, stop))
    is_found = (stop != "") & (before != whole)
    # Ordered by their ends, then by their beginnings.
    order = tf.where(is_found, (starts + lengths) * 2**32 + starts, tf.int64.max)
    first = tf.gather(before, tf.argmin(order, axis=1), batch_dims=1)
    return tf.where(tf.reduce_any(is_found, axis=1), first, texts)


def traced_once(function: Callable[..., Any], specs: list[Any]) -> Any:
    """Returns a `tf.function` that several signatures share, so that the export has one copy."""
    return tf.function(function, input_signature=specs, autograph=False)
