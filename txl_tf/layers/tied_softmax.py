"""The softmax over the whole vocabulary that reuses the embedding table.

Shape letters used in this module: B rows, T segment length, V vocabulary,
D hidden width.
"""

import keras
from keras import ops

from txl_tf import functional
from txl_tf.layers.token_id_check import check_token_ids


@keras.saving.register_keras_serializable(package="txl_tf")
class TiedSoftmax(keras.layers.Layer):
    """Logits of all tokens: hidden states times the embedding table, plus bias.

    The table belongs to the embedding layer and is a call argument, so the two
    are one variable. The bias starts at 0.

    Args:
        vocabulary_size: int. Number of token ids, `V`.
        **kwargs: other keyword arguments passed to `keras.layers.Layer`.

    Call arguments:
        hidden: float tensor `(B, T, D)`.
        table: float tensor `(V, D)`.

    Returns:
        Logits: float32 tensor `(B, T, V)`, float64 if the inputs are.

    Raises:
        ValueError: If `vocabulary_size` is not positive.
    """

    def __init__(self, vocabulary_size, **kwargs):
        super().__init__(**kwargs)
        if vocabulary_size <= 0:
            raise ValueError(
                f"`vocabulary_size` must be positive. Received: vocabulary_size={vocabulary_size}"
            )
        self.vocabulary_size = vocabulary_size

    def build(self, hidden_shape, table_shape=None):
        self.bias = self.add_weight(
            shape=(self.vocabulary_size,), initializer="zeros", autocast=False, name="bias"
        )

    def call(self, hidden, table):
        logits = ops.matmul(hidden, ops.transpose(ops.cast(table, self.compute_dtype)))
        logits = functional.at_least_float32(logits)
        return logits + ops.cast(self.bias, logits.dtype)  # [B, T, V]

    def negative_log_likelihood(self, hidden, target_ids, table):
        """Nats per token: float32 tensor `(B, T)`; targets are checked if they are at hand."""
        check_token_ids(target_ids, self.vocabulary_size, "target_ids")
        return functional.negative_log_likelihood(self(hidden, table), target_ids)

    def log_probs(self, hidden, table):
        """Log-probabilities of all tokens: float32 tensor `(B, T, V)`."""
        return ops.log_softmax(self(hidden, table), axis=-1)

    def compute_output_spec(self, hidden, table):
        dtype = "float64" if self.compute_dtype == "float64" else "float32"
        return keras.KerasTensor((*hidden.shape[:-1], self.vocabulary_size), dtype=dtype)

    def get_config(self):
        return {**super().get_config(), "vocabulary_size": self.vocabulary_size}
