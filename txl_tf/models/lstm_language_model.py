"""An LSTM as a language model: a baseline that carries its state along.

Shape letters used in this module:
  B rows, T segment length, D hidden width, E embedding width, V vocabulary,
  L layers.
"""

import keras
from keras import ops

from txl_tf import functional
from txl_tf.config.recurrent_config import RecurrentConfig
from txl_tf.layers.seeded_dropout import SeededDropout
from txl_tf.layers.tied_softmax import TiedSoftmax
from txl_tf.layers.token_embedding import TokenEmbedding
from txl_tf.models.recurrent_memory import RecurrentMemory


@keras.saving.register_keras_serializable(package="txl_tf")
class LSTMLanguageModel(keras.Model):
    """Stacked LSTM layers that carry their states from segment to segment.

    Embedding and softmax share one table, for which the last layer is as wide
    as the embedding, as in Merity et al. (2018). Dropout acts between the
    layers and not on the recurrence. Gradients stop at the border of a
    segment: truncated back-propagation in time.

    Under a mixed policy the LSTM layers stay in float32. A cell state in half
    precision would forget what is small beside it.

    Args:
        config: `RecurrentConfig`, or the dict that its `to_dict` returns.
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
     - [Hochreiter and Schmidhuber, 1997](https://doi.org/10.1162/neco.1997.9.8.1735)
     - [Merity et al., 2018](https://arxiv.org/abs/1708.02182)
    """

    def __init__(self, config, **kwargs):
        # Autocasting would round the states that are handed in.
        super().__init__(autocast=False, **kwargs)
        if isinstance(config, dict):
            config = RecurrentConfig.from_dict(config)
        self.config = config
        common = {"dtype": self.dtype_policy}
        self.embedding = TokenEmbedding(
            config.vocabulary_size,
            config.table_dim,
            embeddings_initializer=self._initializer(),
            name="embedding",
            **common,
        )
        self.recurrent_layers = [
            self._recurrent_layer(width, name=f"lstm_{index}")
            for index, width in enumerate(config.layer_dims)
        ]
        self.embedding_dropout = SeededDropout(config.dropout, name="embedding_dropout", **common)
        self.layer_dropouts = [
            SeededDropout(config.dropout, name=f"dropout_{index}", **common)
            for index in range(config.num_layers)
        ]
        self.softmax = TiedSoftmax(config.vocabulary_size, name="softmax", **common)
        self._build_layers()

    def _initializer(self):
        return keras.initializers.RandomNormal(stddev=self.config.initializer_stddev)

    def _recurrent_layer(self, width, name):
        return keras.layers.LSTM(
            width,
            return_sequences=True,
            return_state=True,
            use_cudnn=False,  # XLA cannot compile the kernel of cuDNN
            kernel_initializer=self._initializer(),
            recurrent_initializer=self._initializer(),
            name=name,
            dtype=self.variable_dtype,
        )

    def _build_layers(self):
        self.embedding.build((None, None))
        width = self.config.table_dim
        for layer, next_width in zip(self.recurrent_layers, self.config.layer_dims, strict=True):
            layer.build((None, None, width))
            width = next_width
        self.softmax.build((None, None, width))
        self.built = True

    def call(self, token_ids, memory, dropout_seed=None, training=False):
        def drop(layer, tensor, site):
            return layer(tensor, seed=functional.fold_seed(dropout_seed, site), training=training)

        hidden = drop(self.embedding_dropout, self.embedding(token_ids), 0)  # [B, T, E]
        next_states = []
        states = memory.by_layer(self.config.num_layers)
        steps = zip(self.recurrent_layers, self.layer_dropouts, states, strict=True)
        for site, (layer, dropout, (output, cell)) in enumerate(steps, start=1):
            hidden, output, cell = layer(hidden, initial_state=[output, cell])
            hidden = ops.cast(hidden, self.compute_dtype)
            next_states.append((output, cell))
            hidden = drop(dropout, hidden, site)  # [B, T, D], in the end [B, T, E]
        return hidden, RecurrentMemory.of_layers(next_states)

    def initial_memory(self, batch_size):
        """Memory of rows that have read nothing yet.

        Args:
            batch_size: int. Number of rows `B`.

        Returns:
            A `RecurrentMemory` of zeros.
        """
        widths = tuple((width, width) for width in self.config.layer_dims)
        return RecurrentMemory.empty(
            widths=widths, batch_size=batch_size, dtype=self.variable_dtype
        )

    def score(self, token_ids, target_ids, memory, dropout_seed=None, training=False):
        """Scores targets: how surprised the model is by each.

        Args:
            token_ids: int tensor `(B, T)`.
            target_ids: int tensor `(B, T)`; position `t` is the token after
                `token_ids[:, t]`.
            memory: `RecurrentMemory` of the segments before.
            dropout_seed: optional int32 tensor `(2,)`.
            training: bool. Whether dropout is active.

        Returns:
            Tuple of the negative log-likelihood in nats, float32 `(B, T)`, and
            the next `RecurrentMemory`.
        """
        hidden, memory = self(token_ids, memory, dropout_seed=dropout_seed, training=training)
        nll = self.softmax.negative_log_likelihood(hidden, target_ids, self.embedding.table)
        return nll, memory

    def log_probs(self, token_ids, memory):
        """Log-probabilities of every token of the vocabulary coming next.

        Args:
            token_ids: int tensor `(B, T)`.
            memory: `RecurrentMemory` of the segments before.

        Returns:
            Tuple of a float32 tensor `(B, T, V)` and the next
            `RecurrentMemory`.
        """
        hidden, memory = self(token_ids, memory)
        return self.softmax.log_probs(hidden, self.embedding.table), memory

    def get_config(self):
        return {**super().get_config(), "config": self.config.to_dict()}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**config)
