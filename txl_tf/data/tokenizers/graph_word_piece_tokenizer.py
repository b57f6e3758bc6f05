"""The tokenizer of parts of words as TensorFlow operations."""

from collections.abc import Sequence

import tensorflow as tf
import tensorflow_text

from txl_tf.data.tokenizers.graph_words import graph_join_words, graph_split_words
from txl_tf.data.tokenizers.word_piece_tokenizer import SUFFIX_INDICATOR
from txl_tf.data.tokenizers.word_rule import LINE_MARK, WordRule


class GraphWordPieceTokenizer(tf.Module):
    """Reads texts as parts of words, within a graph.

    Args:
        operation: `tensorflow_text.FastWordpieceTokenizer`. Splits words.
        pieces: sequence of bytes. The vocabulary.
        rule: `WordRule`. How text is split into words.
        mark_id: optional int. The id that marks lines.
    """

    def __init__(
        self,
        operation: tensorflow_text.FastWordpieceTokenizer,
        pieces: Sequence[bytes],
        rule: WordRule,
        mark_id: int | None,
    ) -> None:
        super().__init__()
        self._operation = operation
        self._pieces = tf.constant(list(pieces))
        self._rule = rule
        self._mark_id = mark_id

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Turns texts into token ids.

        Args:
            texts: string tensor `[B]`. UTF-8.

        Returns:
            int32 ragged tensor `[B, T]`.

        Raises:
            tf.errors.InvalidArgumentError: If a text is not UTF-8.
        """
        words = graph_split_words(texts, self._rule)
        if self._mark_id is not None:
            flat = words.values
            words = words.with_values(
                tf.where(flat == LINE_MARK, self._pieces[self._mark_id], flat)
            )
        return words.with_values(self._operation.tokenize(words.values)).merge_dims(1, 2)

    def detokenize(self, token_ids: tf.RaggedTensor) -> tf.Tensor:
        """Turns token ids back into texts, as `WordPieceTokenizer.decode` does.

        Args:
            token_ids: int32 ragged tensor `[B, T]`.

        Returns:
            string tensor `[B]`.

        Raises:
            tf.errors.InvalidArgumentError: If an id is not in the vocabulary.
        """
        texts = graph_join_words(token_ids, self._pieces, self._mark_id, self._rule.add_double_eos)
        return tf.strings.regex_replace(texts, f" ?{SUFFIX_INDICATOR}", "")
