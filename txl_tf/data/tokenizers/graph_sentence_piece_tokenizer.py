"""The tokenizer of SentencePiece models as TensorFlow operations."""

import tensorflow as tf
import tensorflow_text

from txl_tf.data.tokenizers.sentence_piece_tokenizer import BLOCK_SUBSTITUTE


class GraphSentencePieceTokenizer(tf.Module):
    """Reads texts as the pieces of a SentencePiece model, within a graph.

    Args:
        model: bytes. The serialized model.
    """

    def __init__(self, model: bytes) -> None:
        super().__init__()
        self._model = model

    @property
    def _operation(self) -> tensorflow_text.SentencepieceTokenizer:
        # Made within each function, never kept: the operation that loads the model owns it, and
        # TensorFlow drops operations outside of functions when the random seed is set.
        return tensorflow_text.SentencepieceTokenizer(model=self._model, out_type=tf.int32)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def tokenize_lines(self, lines: tf.Tensor) -> tf.RaggedTensor:
        """Turns lines into token ids, without a look at what they are.

        Args:
            lines: string tensor `[B]`. UTF-8.

        Returns:
            int32 ragged tensor `[B, T]`.
        """
        return self._operation.tokenize(lines)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Turns texts into token ids.

        Args:
            texts: string tensor `[B]`. UTF-8.

        Returns:
            int32 ragged tensor `[B, T]`.

        Raises:
            tf.errors.InvalidArgumentError: If a text is not UTF-8 or has
                U+10FFFE.
        """
        characters = tf.strings.unicode_decode(texts, "UTF-8", errors="strict")
        is_valid = tf.debugging.assert_none_equal(
            characters.values, ord(BLOCK_SUBSTITUTE), message="A text has U+10FFFE."
        )
        with tf.control_dependencies([is_valid]):
            # Lines keep their ends; what follows the last of them is a line too.
            lines = tf.strings.split(texts, "\n")
        places = tf.range(tf.size(lines.values, tf.int64)) + 1
        is_last = tf.equal(places, tf.repeat(lines.row_splits[1:], lines.row_lengths()))
        ended = tf.where(is_last, lines.values, lines.values + "\n")
        return lines.with_values(self.tokenize_lines(ended)).merge_dims(1, 2)

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int32, ragged_rank=1)])
    def detokenize(self, token_ids: tf.RaggedTensor) -> tf.Tensor:
        """Turns token ids back into texts.

        Args:
            token_ids: int32 ragged tensor `[B, T]`.

        Returns:
            string tensor `[B]`.

        Raises:
            tf.errors.OutOfRangeError: If an id is not in the vocabulary.
        """
        return self._operation.detokenize(token_ids)
