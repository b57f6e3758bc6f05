"""The tokenizer of characters as TensorFlow operations."""

from collections.abc import Sequence

import tensorflow as tf


class GraphCharacterTokenizer(tf.Module):
    """Reads texts as characters, within a graph.

    Args:
        characters: sequence of str. The characters that have ids.
        tokens: sequence of str. What every id is written as.
        unknown_token: optional str. The token that stands for other characters.
    """

    def __init__(
        self, characters: Sequence[str], tokens: Sequence[str], unknown_token: str | None
    ) -> None:
        super().__init__()
        self._tokens = tf.constant([token.encode() for token in tokens])
        unknown_id = -1 if unknown_token is None else tokens.index(unknown_token)
        code_points = tf.constant([ord(character) for character in characters], tf.int64)
        ids = tf.range(len(characters), dtype=tf.int64)
        initializer = tf.lookup.KeyValueTensorInitializer(code_points, ids)
        self._table = tf.lookup.StaticHashTable(initializer, default_value=unknown_id)

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Turns texts into token ids.

        Args:
            texts: string tensor `[B]`. UTF-8.

        Returns:
            int32 ragged tensor `[B, T]`.

        Raises:
            tf.errors.InvalidArgumentError: If a text is not UTF-8, or a
                character is unknown and there is no token for that.
        """
        code_points = tf.strings.unicode_decode(texts, "UTF-8", errors="strict")
        ids = self._table.lookup(tf.cast(code_points, tf.int64))
        with tf.control_dependencies(
            [tf.debugging.assert_non_negative(ids.values, "A character is not in the vocabulary.")]
        ):
            return tf.cast(ids, tf.int32)

    def detokenize(self, token_ids: tf.RaggedTensor) -> tf.Tensor:
        """Turns token ids back into texts.

        Args:
            token_ids: int32 ragged tensor `[B, T]`.

        Returns:
            string tensor `[B]`.

        Raises:
            tf.errors.InvalidArgumentError: If an id is not in the vocabulary.
        """
        return tf.strings.reduce_join(tf.gather(self._tokens, token_ids), axis=-1)
