"""An LSTM as a language model: a baseline that carries its state along.

Shape letters used in this module:
  B rows, T segment length, E embedding width, V vocabulary, L layers.
"""

import keras
from keras import ops

from txl_tf.config.lstm_config import LSTMConfig
from txl_tf.models.recurrent_language_model import RecurrentLanguageModel


@keras.saving.register_keras_serializable(package="txl_tf")
class LSTMLanguageModel(RecurrentLanguageModel):
    """Stacked LSTM layers that carry their states from segment to segment.

    Embedding and softmax share one table, for which the last layer is as wide
    as the embedding, as in Merity et al. (2018). Dropout acts between the
    layers and not on the recurrence. Gradients stop at the border of a
    segment: truncated back-propagation in time.

    Under a mixed policy the LSTM layers stay in float32. A cell state in half
    precision would forget what is small beside it.

    Args:
        config: `LSTMConfig`, or the dict that its `to_dict` returns.
        **kwargs: other keyword arguments passed to `keras.Model`, including
            `name` and `dtype`.

    Call arguments:
        token_ids: int tensor `(B, T)` with values in `[0, V)`.
        memory: `RecurrentMemory` of the segments before, from
            `initial_memory` or a call.
        dropout_seed: optional int32 tensor `(2,)` or `(B, 2)`. With it, all dropout masks
            are a function of it.
        training: bool. Whether dropout is active.

    Returns:
        Tuple of the hidden states `(B, T, E)` and the next `RecurrentMemory`.

    Raises:
        ValueError: If `memory` is not one of `L` layers.

    References:
     - [Hochreiter and Schmidhuber, 1997](https://doi.org/10.1162/neco.1997.9.8.1735)
     - [Merity et al., 2018](https://arxiv.org/abs/1708.02182)
    """

    config_class = LSTMConfig

    def create_layer(self, width, index):
        return keras.layers.LSTM(
            width,
            return_sequences=True,
            return_state=True,
            use_cudnn=False,  # XLA cannot compile the kernel of cuDNN
            kernel_initializer=self._initializer(),
            recurrent_initializer=self._initializer(),
            name=f"lstm_{index}",
            dtype=self.variable_dtype,
        )

    def run_layer(self, layer, hidden, state):
        # Read before the loop over positions: a TPU cannot take a variable into a loop that
        # gradients go back through.
        values = [(variable, ops.convert_to_tensor(variable)) for variable in layer.weights]
        with keras.StatelessScope(state_mapping=values):
            hidden, output, cell = layer(hidden, initial_state=list(state))
        return ops.cast(hidden, self.compute_dtype), (output, cell)

    def state_widths(self):
        return tuple((width, width) for width in self.config.layer_dims)

    def state_dtype(self):
        return self.variable_dtype
