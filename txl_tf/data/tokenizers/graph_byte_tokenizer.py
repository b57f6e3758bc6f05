"""The tokenizer of bytes as TensorFlow operations."""

import tensorflow as tf


class GraphByteTokenizer(tf.Module):
    """Reads texts as bytes, within a graph."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = tf.constant([bytes([value]) for value in range(256)])

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Turns texts into token ids.

        Args:
            texts: string tensor `[B]`, of any bytes.

        Returns:
            int32 ragged tensor `[B, T]`.
        """
        lengths = tf.cast(tf.strings.length(texts), tf.int64)
        # One string, because fixed-length decoding pads what is shorter.
        values = tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8)
        return tf.RaggedTensor.from_row_lengths(tf.cast(values, tf.int32), lengths)

    def detokenize(self, token_ids: tf.RaggedTensor) -> tf.Tensor:
        """Turns token ids back into texts.

        Args:
            token_ids: int32 ragged tensor `[B, T]`.

        Returns:
            string tensor `[B]`.

        Raises:
            tf.errors.InvalidArgumentError: If an id is not a byte.
        """
        return tf.strings.reduce_join(tf.gather(self._bytes, token_ids), axis=-1)
