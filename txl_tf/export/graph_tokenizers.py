"""Tokenizers as TensorFlow operations, for exported graphs."""

import abc
from typing import Any

import tensorflow as tf

from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.data.tokenizers.character_tokenizer import CharacterTokenizer
from txl_tf.data.tokenizers.piece_tokenizers import (
    BLOCK_SUBSTITUTE,
    SUFFIX_INDICATOR,
    SentencePieceTokenizer,
    WordPieceTokenizer,
)
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.data.tokenizers.word_tokenizer import LINE_MARK, RuleTokenizer, WordRule, WordTokenizer


class GraphTokenizer(tf.Module, abc.ABC):
    """Base class of tokenizers in a graph.

    `marks_lines` is True if each line, also the last one of a text, ends with a token of its own.
    """

    marks_lines = False
    _tokens: tf.Tensor

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Converts texts, string `[B]`, to int32 ragged ids `[B, T]`, without byte order marks.

        Raises tf.errors.InvalidArgumentError for invalid UTF-8 (except bytes) or a missing token.
        """
        return self._tokenize(tf.strings.regex_replace(texts, "^\ufeff", ""))

    @abc.abstractmethod
    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Converts texts without byte order marks to token ids."""

    def detokenize(self, token_ids: tf.RaggedTensor) -> tf.Tensor:
        """Converts int32 ragged ids `[B, T]` to texts, string `[B]`, like `Tokenizer.decode_bytes`.

        Raises tf.errors.InvalidArgumentError for an id outside the vocabulary (SentencePiece:
        OutOfRangeError).
        """
        return tf.strings.reduce_join(tf.gather(self._tokens, token_ids), axis=-1)


class _Byte(GraphTokenizer):
    def __init__(self, _: ByteTokenizer) -> None:
        super().__init__()
        self._tokens = tf.constant([bytes([value]) for value in range(256)])

    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        lengths = tf.cast(tf.strings.length(texts), tf.int64)
        # Joined to one string, because `decode_raw` would pad shorter ones.
        values = tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8)
        return tf.RaggedTensor.from_row_lengths(tf.cast(values, tf.int32), lengths)


class _Character(GraphTokenizer):
    def __init__(self, tokenizer: CharacterTokenizer) -> None:
        super().__init__()
        self._tokens = tf.constant(tokenizer.tokens)
        unknown_id = -1 if tokenizer.unknown_id is None else tokenizer.unknown_id
        characters = tokenizer.characters
        code_points = tf.constant([ord(character) for character in characters], tf.int64)
        ids = tf.range(len(characters), dtype=tf.int64)
        initializer = tf.lookup.KeyValueTensorInitializer(code_points, ids)
        self._table = tf.lookup.StaticHashTable(initializer, default_value=unknown_id)

    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        code_points = tf.strings.unicode_decode(texts, "UTF-8", errors="strict")
        ids = self._table.lookup(tf.cast(code_points, tf.int64))
        with tf.control_dependencies(
            [tf.debugging.assert_non_negative(ids.values, "A character is not in the vocabulary.")]
        ):
            return tf.cast(ids, tf.int32)


class _SentencePiece(GraphTokenizer):
    def __init__(self, tokenizer: SentencePieceTokenizer) -> None:
        super().__init__()
        self._tokenize_lines, self._detokenize = tokenizer.operations

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        characters = tf.strings.unicode_decode(texts, "UTF-8", errors="strict")
        is_valid = tf.debugging.assert_none_equal(
            characters.values, ord(BLOCK_SUBSTITUTE), message="A text must not contain U+10FFFE."
        )
        with tf.control_dependencies([is_valid]):
            # Lines keep their ends; the text after the last line end is a line too.
            lines = tf.strings.split(texts, "\n")
        places = tf.range(tf.size(lines.values, tf.int64)) + 1
        is_last = tf.equal(places, tf.repeat(lines.row_splits[1:], lines.row_lengths()))
        ended_lines = tf.where(is_last, lines.values, lines.values + "\n")
        return lines.with_values(self._tokenize_lines(ended_lines)).merge_dims(1, 2)

    def detokenize(self, token_ids: tf.RaggedTensor) -> tf.Tensor:
        return self._detokenize(token_ids)


# White space of `str.split`, except line ends.
_WHITE_SPACE = (
    r"[\t\x0b\x0c\x1c-\x1f \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}"
    r"\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]+"
)


def _split_words(texts: tf.Tensor, rule: WordRule) -> tf.RaggedTensor:
    """Splits UTF-8 texts `[B]` into ragged words `[B, T]` with `LINE_MARK`, like `WordRule.split`.

    Lower case follows TensorFlow's Unicode 13 tables, without the few capital letters added since.
    Raises tf.errors.InvalidArgumentError for text that is not UTF-8.
    """
    # Only to refuse invalid text: transcoding would replace some characters.
    code_points = tf.strings.unicode_decode(texts, "UTF-8", errors="strict")
    with tf.control_dependencies([code_points.values]):
        texts = tf.identity(texts)
    texts = tf.strings.regex_replace(texts, _WHITE_SPACE, " ")
    if rule.lower_case:
        # The operation stops at NUL. U+001F is white space and so no longer occurs in the text.
        texts = tf.strings.regex_replace(texts, r"\x00", "\x1f")
        texts = tf.strings.lower(texts, encoding="utf-8")
        texts = tf.strings.regex_replace(texts, r"\x1f", b"\x00")
    texts = tf.strings.regex_replace(texts, r"\r\n?", "\n")
    if not rule.marks_lines:
        return tf.strings.split(texts)
    mark = b" " + LINE_MARK + b" "
    # A line end at the end of the text begins no new line.
    lines = tf.strings.regex_replace(texts, r"\n\z", "")
    between = mark + mark if rule.add_double_eos else mark
    lines_with_marks = tf.strings.regex_replace(lines, "\n", between) + mark
    if rule.add_double_eos:
        lines_with_marks = mark + lines_with_marks
    return tf.strings.split(tf.where(tf.equal(texts, ""), tf.constant(""), lines_with_marks))


class _Rule(GraphTokenizer):
    """Base class of tokenizers that split words by a `WordRule`."""

    def __init__(self, tokenizer: RuleTokenizer) -> None:
        super().__init__()
        self._rule, self._mark_id = tokenizer.rule, tokenizer.mark_id
        self.marks_lines = tokenizer.rule.marks_lines
        self._tokens = tf.constant(tokenizer.token_texts())

    def detokenize(self, token_ids: tf.RaggedTensor) -> tf.Tensor:
        words = tf.gather(self._tokens, token_ids)
        if self._mark_id is None:
            return tf.strings.reduce_join(words, axis=-1, separator=" ")
        is_mark = tf.equal(token_ids, self._mark_id)
        words = tf.ragged.map_flat_values(tf.where, is_mark, "\n", words)
        if self._rule.add_double_eos:
            # Each line is between two marks; only the second is its end.
            marks = is_mark.to_tensor(default_value=False)
            is_odd = tf.math.cumsum(tf.cast(marks, tf.int32), axis=1) % 2 == 1
            opens = marks & tf.equal(is_odd, tf.pad(marks, [[0, 0], [0, 1]])[:, :1])
            is_kept = tf.RaggedTensor.from_tensor(~opens, lengths=token_ids.row_lengths())
            words = tf.ragged.boolean_mask(words, is_kept)
        texts = tf.strings.reduce_join(words, axis=-1, separator=" ")
        return tf.strings.regex_replace(tf.strings.regex_replace(texts, " \n", "\n"), "\n ", "\n")


class _WordPiece(_Rule):
    def __init__(self, tokenizer: WordPieceTokenizer) -> None:
        super().__init__(tokenizer)
        self._operation = tokenizer.operations

    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        words = _split_words(texts, self._rule)
        if self._mark_id is not None:
            flat = words.values
            words = words.with_values(
                tf.where(flat == LINE_MARK, self._tokens[self._mark_id], flat)
            )
        return words.with_values(self._operation.tokenize(words.values)).merge_dims(1, 2)

    def detokenize(self, token_ids: tf.RaggedTensor) -> tf.Tensor:
        return tf.strings.regex_replace(super().detokenize(token_ids), f" ?{SUFFIX_INDICATOR}", "")


class _Word(_Rule):
    def __init__(self, tokenizer: WordTokenizer) -> None:
        super().__init__(tokenizer)
        keys, ids = list(tokenizer.ids), tf.constant(list(tokenizer.ids.values()), tf.int64)
        initializer = tf.lookup.KeyValueTensorInitializer(keys, ids)
        default = -1 if tokenizer.unknown_id is None else tokenizer.unknown_id
        self._table = tf.lookup.StaticHashTable(initializer, default_value=default)

    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        ids = self._table.lookup(_split_words(texts, self._rule))
        is_known = tf.debugging.assert_non_negative(ids.values, "A word is not in the vocabulary.")
        with tf.control_dependencies([is_known]):
            return tf.cast(ids, tf.int32)


def graph_tokenizer(tokenizer: Tokenizer) -> GraphTokenizer:
    """Returns a tokenizer as TensorFlow operations."""
    forms: dict[str, Any] = {
        "bytes": _Byte,
        "characters": _Character,
        "ids": _Word,
        "sentencepiece": _SentencePiece,
        "wordpiece": _WordPiece,
        "words": _Word,
    }
    return forms[tokenizer.kind](tokenizer)
