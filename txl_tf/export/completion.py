"""Signatures with one input: texts or token ids in, their continuation or score out.

Shape letters used in this module: B rows, T tokens, S tokens to write.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from txl_tf.config.generation import GenerationConfig
from txl_tf.data.tokenizers.tokenizer import Tokenizer, stop_tokens
from txl_tf.export.sampling import writer_settings
from txl_tf.export.served_model import ServedModel
from txl_tf.export.text_signatures import TextSignatures, not_empty
from txl_tf.export.token_signatures import TokenSignatures, WireMemory, signature

# exp() of more overflows float32.
_LARGEST_MEAN_NATS = 88.0


class CompletionSignatures:
    """Signatures with one input and without memory; they check requests and answer them.

    `complete` continues texts and `perplexity` scores them; without a tokenizer `complete_ids`
    continues token ids. Rows may differ in length, and each is answered as if it were alone. A
    stop text that is a single token also ends the sampling loop.
    """

    def __init__(
        self,
        served: ServedModel,
        memory: WireMemory,
        completion: GenerationConfig,
        tokens: TokenSignatures,
        texts: TextSignatures | None,
        tokenizer: Tokenizer | None,
    ) -> None:
        self._served = served
        self._memory = memory
        self._completion = completion
        self._tokens = tokens
        self._texts = texts
        self._end_ids: list[int] = []
        self._stop_ids: list[int] = []
        if tokenizer is not None:
            self._end_ids = [] if tokenizer.end_token_id is None else [tokenizer.end_token_id]
            self._stop_ids = stop_tokens(tokenizer, completion.stop)

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Returns a `tf.function` by name; a model without memory continues nothing."""
        found = {}
        has_memory = self._memory.memory_length > 0
        if self._texts is not None:
            texts = tf.TensorSpec(None, tf.string, "texts")
            if has_memory:
                found["complete"] = signature(self.complete, [texts])
            found["perplexity"] = signature(self.perplexity, [texts])
        elif has_memory:
            ids = tf.TensorSpec(None, tf.int32, "token_ids")
            found["complete_ids"] = signature(self.complete_ids, [ids])
        return found

    def complete(self, texts):
        """Continues texts `(B,)`; returns `texts` in UTF-8, with U+FFFD for invalid bytes."""
        rows = not_empty(self._texts.prompt_ids_of(texts))
        written, counts = self._written(rows.to_tensor(), rows.row_lengths())
        if self._end_ids:
            last = tf.gather(written, counts - 1, batch_dims=1)
            is_end = tf.reduce_any(last[:, None] == tf.constant([self._end_ids]), axis=1)
            counts -= tf.cast(is_end, tf.int32)
        written = tf.RaggedTensor.from_tensor(written, lengths=counts, row_splits_dtype=tf.int32)
        # A tokenizer may decode a token differently after another one.
        whole, before = self._text_of(tf.concat([rows, written], axis=1)), self._text_of(rows)
        start = tf.strings.length(before, unit="UTF8_CHAR")
        rest = tf.strings.length(whole, unit="UTF8_CHAR") - start
        after = tf.strings.substr(whole, start, tf.maximum(rest, 0), unit="UTF8_CHAR")
        if self._completion.stop:
            after = tf.strings.regex_replace(after, _from_first(self._completion.stop), "")
        return {"texts": after}

    def complete_ids(self, token_ids):
        """Continues rows of token ids `(B, T)`; returns `token_ids`, int32 `(B, S)`."""
        token_ids, lengths, _ = self._tokens.rows_of_ids(token_ids, tf.constant(-1), 1)
        written, _ = self._written(token_ids, lengths)
        return {"token_ids": written}

    def perplexity(self, texts):
        """Scores texts `(B,)`, each of two tokens or more.

        Returns `nats`, float32 `(B,)`, of all tokens but the first; `tokens`, int32 `(B,)`, their
        number; and `perplexity`, float32 `(B,)`.
        """
        rows = not_empty(self._texts.ids_of(texts), fewest=2)
        lengths = rows.row_lengths() - 1

        def score(rows, lengths):
            nll, _ = self._served.score(rows[:, :-1], rows[:, 1:], lengths, self._nothing(rows))
            return tf.reduce_sum(nll, axis=1)

        ids = rows.to_tensor()
        if self._served.config.has_relative_positions:
            nats = score(ids, lengths)
        else:
            nats = tf.map_fn(
                lambda row: score(row[0][None, : row[1] + 1], row[1][None])[0],
                (ids, lengths),
                fn_output_signature=tf.TensorSpec([], tf.float32),
            )
        mean = nats / tf.cast(lengths, tf.float32)
        perplexity = tf.exp(tf.minimum(mean, _LARGEST_MEAN_NATS))
        return {"nats": nats, "tokens": lengths, "perplexity": perplexity}

    def _written(self, ids: tf.Tensor, lengths: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Writes after rows: int32 tokens `(B, S)`, padded with zeros, and their counts `(B,)`."""

        def write(ids, lengths, seeds):
            stops = [*self._end_ids, *self._stop_ids]
            settings = writer_settings(self._completion, seeds, stops)
            written, _, counts, _ = self._served.generate(
                ids, lengths, settings, self._nothing(ids)
            )
            return written, counts

        rows = (ids, lengths, self._seeds(tf.shape(ids)[0]))
        if self._served.config.has_relative_positions:
            return write(*rows)

        def write_alone(row):
            ids, length, seed = row
            written, counts = write(ids[None, :length], length[None], seed[None])
            return written[0], counts[0]

        specs = (
            tf.TensorSpec([self._completion.max_tokens], tf.int32),
            tf.TensorSpec([], tf.int32),
        )
        return tf.map_fn(write_alone, rows, fn_output_signature=specs)

    def _nothing(self, ids):
        num_rows = tf.shape(ids)[0]
        states = tf.zeros(tf.stack([num_rows, 0, 0, 0]), self._memory.dtype)
        return self._memory.take(states, tf.zeros([num_rows], tf.int32), num_rows)

    def _seeds(self, num_rows: tf.Tensor) -> tf.Tensor:
        if self._completion.seed is None and self._completion.temperature:
            # Neither a seed of the exporting program nor a state of the server may decide it.
            return tf.raw_ops.NonDeterministicInts(shape=num_rows[None], dtype=tf.int32)
        return tf.fill([num_rows], np.int32(self._completion.seed or 0))

    def _text_of(self, rows: tf.RaggedTensor) -> tf.Tensor:
        texts = self._texts.text_of(rows.to_tensor(), rows.row_lengths())
        return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")


def _from_first(texts: tuple[str, ...]) -> str:
    """Returns a pattern that matches from the first occurrence of any text to the end."""
    escaped = ["".join(f"\\x{{{ord(character):x}}}" for character in text) for text in texts]
    return f"(?s)(?:{'|'.join(escaped)}).*"
