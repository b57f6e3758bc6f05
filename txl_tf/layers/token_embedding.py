"""Token embedding with the table of which the softmax is the reverse.

Shape letters used in this module: B rows, T segment length, V vocabulary,
D hidden width.
"""

import keras
from keras import ops

from txl_tf.layers.token_id_check import check_token_ids


@keras.saving.register_keras_serializable(package="txl_tf")
class TokenEmbedding(keras.layers.Layer):
    """Looks token ids up in a table and scales by `sqrt(D)`.

    Args:
        vocabulary_size: int. Number of token ids, `V`.
        hidden_dim: int. Width `D`.
        embeddings_initializer: initializer of the table. Defaults to a normal
            distribution of stddev 0.02.
        **kwargs: other keyword arguments passed to `keras.layers.Layer`.

    Call arguments:
        token_ids: int tensor `(B, T)` with values in `[0, V)`.

    Returns:
        Float tensor `(B, T, D)`.

    Raises:
        ValueError: If a size is not positive; if ids are not in `[0, V)` and
            are at hand, see `check_token_ids`. In a compiled function the row
            of such an id is not defined.
    """

    def __init__(self, vocabulary_size, hidden_dim, embeddings_initializer=None, **kwargs):
        super().__init__(**kwargs)
        if vocabulary_size <= 0 or hidden_dim <= 0:
            raise ValueError(
                "`vocabulary_size` and `hidden_dim` must be positive. "
                f"Received: vocabulary_size={vocabulary_size}, hidden_dim={hidden_dim}"
            )
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        if embeddings_initializer is None:
            embeddings_initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, token_ids_shape):
        self.table = self.add_weight(
            shape=(self.vocabulary_size, self.hidden_dim),
            initializer=self.embeddings_initializer,
            name="table",
        )

    def __call__(self, token_ids, *args, **kwargs):
        check_token_ids(token_ids, self.vocabulary_size)
        return super().__call__(token_ids, *args, **kwargs)

    def call(self, token_ids):
        token_ids = ops.cast(token_ids, "int32")  # bytes are no index in TensorFlow
        embedded = ops.take(self.table, token_ids, axis=0)  # [B, T, D]
        return ops.cast(embedded, self.compute_dtype) * self.hidden_dim**0.5

    def compute_output_spec(self, token_ids):
        return keras.KerasTensor((*token_ids.shape, self.hidden_dim), dtype=self.compute_dtype)

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "hidden_dim": self.hidden_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
        }
