"""A QRNN as a language model: a baseline that carries its state along.

Shape letters used in this module:
  B rows, T segment length, E embedding width, V vocabulary, L layers.
"""

import keras

from txl_tf.config.qrnn_config import QRNNConfig
from txl_tf.layers.quasi_recurrent import QuasiRecurrent
from txl_tf.models.recurrent_language_model import RecurrentLanguageModel


@keras.saving.register_keras_serializable(package="txl_tf")
class QRNNLanguageModel(RecurrentLanguageModel):
    """Stacked QRNN layers that carry their states from segment to segment.

    What a layer carries is its last input, for the convolution, and its cell
    state. Embedding and softmax share one table, for which the last layer is
    as wide as the embedding, as in Merity et al. (2018). Dropout acts between
    the layers. Gradients stop at the border of a segment: truncated
    back-propagation in time.

    Args:
        config: `QRNNConfig`, or the dict that its `to_dict` returns.
        **kwargs: other keyword arguments passed to `keras.Model`, including
            `name` and `dtype`.

    Call arguments:
        token_ids: int tensor `(B, T)` with values in `[0, V)`.
        memory: `RecurrentMemory` of the segments before, from
            `initial_memory` or a call.
        dropout_seed: optional int32 tensor `(2,)`. With it, all dropout masks
            are a function of it.
        training: bool. Whether dropout is active.

    Returns:
        Tuple of the hidden states `(B, T, E)` and the next `RecurrentMemory`.

    Raises:
        ValueError: If `memory` is not one of `L` layers.

    References:
     - [Bradbury et al., 2017](https://arxiv.org/abs/1611.01576)
     - [Merity et al., 2018](https://arxiv.org/abs/1803.08240)
    """

    config_class = QRNNConfig

    def create_layer(self, width, index):
        return QuasiRecurrent(
            width,
            return_state=True,
            kernel_initializer=self._initializer(),
            name=f"qrnn_{index}",
            dtype=self.dtype_policy,
        )

    def run_layer(self, layer, hidden, state):
        last_input, cell = state
        hidden, last_input, cell = layer(hidden, previous_input=last_input, cell_state=cell)
        return hidden, (last_input, cell)

    def state_widths(self):
        layer_dims = self.config.layer_dims
        return tuple(zip((self.config.table_dim, *layer_dims[:-1]), layer_dims, strict=True))
