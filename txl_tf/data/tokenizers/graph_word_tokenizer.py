"""The tokenizer of words as TensorFlow operations."""

from collections.abc import Sequence

import tensorflow as tf

from txl_tf.data.tokenizers.graph_words import graph_join_words, graph_split_words
from txl_tf.data.tokenizers.word_rule import LINE_MARK, WordRule


class GraphWordTokenizer(tf.Module):
    """Reads texts as words, within a graph.

    Args:
        words: sequence of bytes. The vocabulary.
        rule: `WordRule`. How text is split.
        mark_id: optional int. The id that marks lines.
        unknown_id: optional int. The id that stands for all other words.
    """

    def __init__(
        self,
        words: Sequence[bytes],
        rule: WordRule,
        mark_id: int | None,
        unknown_id: int | None,
    ) -> None:
        super().__init__()
        self._rule = rule
        self._mark_id = mark_id
        self._words = tf.constant(list(words))
        keys, ids = list(words), list(range(len(words)))
        if mark_id is not None:
            keys.append(LINE_MARK)
            ids.append(mark_id)
        initializer = tf.lookup.KeyValueTensorInitializer(keys, tf.constant(ids, tf.int64))
        default = -1 if unknown_id is None else unknown_id
        self._table = tf.lookup.StaticHashTable(initializer, default_value=default)

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Turns texts into token ids.

        Args:
            texts: string tensor `[B]`. UTF-8.

        Returns:
            int32 ragged tensor `[B, T]`.

        Raises:
            tf.errors.InvalidArgumentError: If a text is not UTF-8, or a word
                is unknown and there is no token for that.
        """
        ids = self._table.lookup(graph_split_words(texts, self._rule))
        is_known = tf.debugging.assert_non_negative(ids.values, "A word is not in the vocabulary.")
        with tf.control_dependencies([is_known]):
            return tf.cast(ids, tf.int32)

    def detokenize(self, token_ids: tf.RaggedTensor) -> tf.Tensor:
        """Turns token ids back into texts, as `WordTokenizer.decode` does.

        Args:
            token_ids: int32 ragged tensor `[B, T]`.

        Returns:
            string tensor `[B]`.

        Raises:
            tf.errors.InvalidArgumentError: If an id is not in the vocabulary.
        """
        return graph_join_words(token_ids, self._words, self._mark_id, self._rule.add_double_eos)
