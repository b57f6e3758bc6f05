"""Recurrent baselines: LSTM and QRNN language models that carry their state.

Shape letters used in this module: B rows, T segment length, D hidden width, E embedding width.
"""

import itertools

import keras
from keras import ops

from txl_tf.config.model import LSTMConfig, QRNNConfig, RecurrentConfig
from txl_tf.layers.adaptive_softmax import AdaptiveEmbedding, AdaptiveSoftmax
from txl_tf.layers.quasi_recurrent import QuasiRecurrent
from txl_tf.layers.seeded_dropout import SeededDropout
from txl_tf.models.language_model import LanguageModel
from txl_tf.models.memory import Memory
from txl_tf.stateless_random import fold_seed


class RecurrentLanguageModel(LanguageModel):
    """Stacked recurrent layers that carry their states from segment to segment.

    Embedding and softmax share one table, so the last layer is as wide as the embedding, as in
    Merity et al. (2018). Dropout acts on the embeddings and on the outputs of layers. Gradients
    stop at the segment boundary. Calls and scores are as in `TransformerXL`.

    A subclass has a `config_class`, `create_layer` for a width and an index, `run_layer` from
    hidden states and a state to the next ones, and `state_widths`, a pair for each layer.
    """

    config_class = RecurrentConfig

    def __init__(self, config, **kwargs):
        # Autocasting would round the states in memory.
        super().__init__(config, autocast=False, **kwargs)
        config, common = self.config, {"dtype": self.dtype_policy}
        initializer = self._initializer()
        table = {
            "vocabulary_size": config.vocabulary_size,
            "hidden_dim": config.table_dim,
            # With an explicit seed, a copy of the initializer draws the same numbers.
            "embeddings_initializer": keras.initializers.RandomNormal(
                stddev=initializer.stddev, seed=initializer.seed
            ),
            "projection_initializer": "zeros",  # there is no projection
        }
        self.embedding = AdaptiveEmbedding(**table, name="embedding", **common)
        self.blocks = [
            self.create_layer(width, index) for index, width in enumerate(config.layer_dims)
        ]
        self.embedding_dropout = SeededDropout(config.dropout, name="embedding_dropout", **common)
        self.layer_dropouts = [
            SeededDropout(config.dropout, name=f"dropout_{index}", **common)
            for index in range(config.num_layers)
        ]
        self.softmax = AdaptiveSoftmax(**table, name="softmax", **common)
        self.embedding.build((None, None))
        width = config.table_dim
        for layer, next_width in zip(self.blocks, config.layer_dims, strict=True):
            layer.build((None, None, width))
            width = next_width
        self.softmax.build((None, None, width))
        self.built = True

    def _initializer(self):
        return keras.initializers.RandomNormal(stddev=self.config.initializer_stddev)

    def state_dtype(self):
        """Dtype of the states: float64 with float64 computations, otherwise float32."""
        return "float64" if self.compute_dtype == "float64" else "float32"

    def call(self, token_ids, memory, dropout_seed=None, training=False):
        def drop(layer, tensor, site):
            return layer(tensor, seed=fold_seed(dropout_seed, site), training=training)

        hidden = drop(self.embedding_dropout, self.embedding(token_ids), 0)  # [B, T, E]
        # Both states of every layer without gradients, zeros for a new row.
        has_read = ops.expand_dims(memory.valid_length > 0, 1)  # [B, 1]
        states = [ops.stop_gradient(state[:, 0]) for state in memory.states]
        states = [ops.where(has_read, state, ops.zeros_like(state)) for state in states]
        next_states = []
        pairs = zip(states[::2], states[1::2], strict=True)
        steps = zip(self.blocks, self.layer_dropouts, pairs, strict=True)
        for site, (layer, dropout, state) in enumerate(steps, start=1):
            hidden, next_state = self.run_layer(layer, hidden, state)
            next_states += next_state
            hidden = drop(dropout, hidden, site)  # [B, T, D], in the end [B, T, E]
        states = (ops.expand_dims(ops.stop_gradient(state), 1) for state in next_states)
        return hidden, Memory(tuple(states), ops.ones_like(memory.valid_length))

    def initial_memory(self, batch_size):
        """Returns the `Memory` of `B` rows that have read nothing."""
        shapes = [(batch_size, 1, width) for pair in self.state_widths() for width in pair]
        states = tuple(ops.zeros(shape, self.state_dtype()) for shape in shapes)
        return Memory(states, ops.zeros((batch_size,), "int32"))


@keras.saving.register_keras_serializable(package="txl_tf")
class LSTMLanguageModel(RecurrentLanguageModel):
    """Stacked LSTM layers, see `RecurrentLanguageModel`, of an `LSTMConfig`.

    Dropout does not act on the recurrence. Under a mixed policy the LSTM layers stay in float32,
    because a cell state in half precision would lose small updates.

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
        # Read before the loop over positions: a TPU cannot take a variable into a loop that has
        # gradients.
        values = [(variable, ops.convert_to_tensor(variable)) for variable in layer.weights]
        with keras.StatelessScope(state_mapping=values):
            hidden, output, cell = layer(hidden, initial_state=list(state))
        return ops.cast(hidden, self.compute_dtype), (output, cell)

    def state_widths(self):
        return tuple((width, width) for width in self.config.layer_dims)

    def state_dtype(self):
        return self.variable_dtype


@keras.saving.register_keras_serializable(package="txl_tf")
class QRNNLanguageModel(RecurrentLanguageModel):
    """Stacked QRNN layers, see `RecurrentLanguageModel`, of a `QRNNConfig`.

    A layer carries its last input, for the convolution, and its cell state.

    References:
     - [Bradbury et al., 2017](https://arxiv.org/abs/1611.01576)
     - [Merity et al., 2018](https://arxiv.org/abs/1803.08240)
    """

    config_class = QRNNConfig

    def create_layer(self, width, index):
        return QuasiRecurrent(
            width, self._initializer(), name=f"qrnn_{index}", dtype=self.dtype_policy
        )

    def run_layer(self, layer, hidden, state):
        last_input, cell = state
        hidden, last_input, cell = layer(hidden, previous_input=last_input, cell_state=cell)
        return hidden, (last_input, cell)

    def state_widths(self):
        return tuple(itertools.pairwise((self.config.table_dim, *self.config.layer_dims)))
