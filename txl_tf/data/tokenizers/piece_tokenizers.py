"""Tokenizers of pieces of words, which use tensorflow-text: WordPiece and SentencePiece."""

import functools
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from txl_tf.data.tokenizers.tokenizer import InvalidTextError, Tokenizer, decode_utf8
from txl_tf.data.tokenizers.word_tokenizer import LINE_MARK, RuleTokenizer
from txl_tf.imports import tensorflow as tf, tensorflow_text

# A word may begin with the usual mark "##", but never contains a no-break space (white space).
SUFFIX_INDICATOR = "\u00a0"
# A longer word is unknown. Preparation cuts text into pieces of at most this many bytes.
_MAX_WORD_BYTES = 1 << 20


class WordPieceTokenizer(RuleTokenizer):
    """WordPiece tokenizer, which splits a word into its longest pieces from left to right.

    Schuster and Nakajima (2012) describe the method. The operation of tensorflow-text that computes
    it (Song et al. 2021) is also the one in exports. Pieces that continue a word begin
    with `SUFFIX_INDICATOR`. `decode` restores a text except for its white space and, with
    `lower_case`, its capitals. A word with NUL or an unknown character becomes `unknown_token`.
    Raises ValueError as `RuleTokenizer` does.
    """

    kind = "wordpiece"
    suffix_indicator = SUFFIX_INDICATOR

    def encode_piece(self, text: bytes, begins_line: bool, ends_document: bool) -> np.ndarray:
        words = self.rule.split(text, begins_line, ends_document)
        mark = (self.rule.eos_token or "").encode()
        words = [mark if word == LINE_MARK else word for word in words]
        pieces = self.operations.tokenize(tf.constant(words, tf.string))
        return pieces.values.numpy().astype(self.token_dtype)

    def _decode(self, ids: np.ndarray) -> bytes:
        text = super()._decode(ids)
        # An indicator is still there if the ids begin within a word.
        indicator = SUFFIX_INDICATOR.encode()
        return text.replace(b" " + indicator, b"").replace(indicator, b"")

    @functools.cached_property
    def operations(self) -> "tensorflow_text.FastWordpieceTokenizer":
        """Operation of tensorflow-text that splits words."""
        return tensorflow_text.FastWordpieceTokenizer(
            vocab=[piece.decode() for piece in self.tokens],
            suffix_indicator=SUFFIX_INDICATOR,
            unknown_token=self.unknown_token,
            max_bytes_per_word=_MAX_WORD_BYTES,
            no_pretokenization=True,
            token_out_type=tf.int32,
        )


# SentencePiece writes a space as U+2581, so another character stands for U+2581 itself.
BLOCK_CHARACTER = "\u2581"
# Unicode reserves this code point for internal use of programs, so no text should contain it.
BLOCK_SUBSTITUTE = "\U0010fffe"
_MODEL_FILE = "vocabulary.model"


class SentencePieceTokenizer(Tokenizer):
    """Tokenizer of a serialized SentencePiece model, BPE or unigram (Kudo and Richardson 2018).

    It uses the operation of tensorflow-text that exports contain too. With a model of
    `SentencePieceTraining`, `decode(encode(text)) == text` for every text without U+10FFFE, which
    is refused. Lines are encoded separately: no piece crosses a line end, and sums of scores over
    several lines would be rounded differently. Raises ValueError if the bytes are not a model.
    """

    kind = "sentencepiece"

    def __init__(self, model: bytes) -> None:
        self.model = model
        try:
            pieces = tensorflow_text.SentencepieceTokenizer(model=model)
            self.vocabulary_size = int(pieces.vocab_size())
            self.unknown_id = int(pieces.string_to_id(BLOCK_SUBSTITUTE))
        except tf.errors.OpError as error:
            raise ValueError(
                f"`model` must be a SentencePiece model. Received: {len(model)} bytes"
            ) from error

    @classmethod
    def from_vocabulary_files(cls, files: Mapping[str, bytes]) -> Self:
        return cls(files[_MODEL_FILE])

    @property
    def vocabulary_files(self) -> Mapping[str, bytes]:
        """Name and content of the file with the serialized SentencePiece model."""
        return {_MODEL_FILE: self.model}

    def token_texts(self) -> list[bytes]:
        pieces = tensorflow_text.SentencepieceTokenizer(model=self.model)
        return list(pieces.id_to_string(tf.range(self.vocabulary_size)).numpy())

    def encode_piece(self, text: bytes, begins_line: bool, ends_document: bool) -> np.ndarray:
        decode_utf8(text)
        place = text.find(BLOCK_SUBSTITUTE.encode())
        if place >= 0:
            raise InvalidTextError(
                "The text has U+10FFFE, which this tokenizer cannot encode.", text, place
            )
        lines = [line + b"\n" for line in text.split(b"\n")]
        lines[-1] = lines[-1][:-1]
        return self.operations[0](lines).values.numpy().astype(self.token_dtype)

    def _decode(self, ids: np.ndarray) -> bytes:
        # Bytes that are not UTF-8 become U+FFFD; `encode` never returns ids of such bytes.
        row = tf.RaggedTensor.from_row_lengths(ids.astype(np.int32), np.array([len(ids)], np.int64))
        return self.operations[1](row).numpy()[0]

    @functools.cached_property
    def operations(self) -> tuple[Any, Any]:
        """Graph functions that encode UTF-8 lines to int32 ragged ids, and decode such ids.

        They check nothing.
        """

        def operation() -> tensorflow_text.SentencepieceTokenizer:
            # Each function creates its own, and no variable keeps it. The operation that loads the
            # model owns the model, and TensorFlow drops operations outside functions when the
            # random seed is set.
            return tensorflow_text.SentencepieceTokenizer(model=self.model, out_type=tf.int32)

        lines = tf.TensorSpec([None], tf.string)
        ids = tf.RaggedTensorSpec([None, None], tf.int32, ragged_rank=1)
        return (
            tf.function(lambda lines: operation().tokenize(lines), [lines], autograph=False),
            tf.function(lambda ids: operation().detokenize(ids), [ids], autograph=False),
        )
