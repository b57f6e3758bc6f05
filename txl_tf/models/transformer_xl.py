"""Transformer-XL as a language model.

Shape letters used in this module:
  B rows, T segment length, M memory length, K = M + T key length,
  D hidden width, V vocabulary, L layers.
"""

import keras
from keras import ops

from txl_tf import functional
from txl_tf.config.model_config import ModelConfig
from txl_tf.layers.decoder_block import DecoderBlock
from txl_tf.layers.seeded_dropout import SeededDropout
from txl_tf.layers.tied_softmax import TiedSoftmax
from txl_tf.layers.token_embedding import TokenEmbedding
from txl_tf.models.memory import Memory

_SITES_PER_BLOCK = 8


@keras.saving.register_keras_serializable(package="txl_tf")
class TransformerXL(keras.Model):
    """A language model that carries hidden states from segment to segment.

    Memory is an argument and a result of every call: nothing is hidden. The
    weights exist as soon as the model does.

    Args:
        config: `ModelConfig`, or the dict that its `to_dict` returns.
        **kwargs: other keyword arguments passed to `keras.Model`, including
            `name` and `dtype`.

    Call arguments:
        token_ids: int tensor `(B, T)` with values in `[0, V)`.
        memory: `Memory` of the segments before, from `initial_memory` or a
            call. Its length may differ from `config.memory_length`.
        dropout_seed: optional int32 tensor `(2,)`. With it, all dropout masks
            are a function of it.
        training: bool. Whether dropout is active.

    Returns:
        Tuple of the hidden states `(B, T, D)` and the next `Memory`.

    Example:
    ```python
    config = txl_tf.ModelConfig(
        vocabulary_size=256, num_layers=2, hidden_dim=64, num_heads=2, head_dim=32,
        intermediate_dim=256, segment_length=32, memory_length=32,
    )
    model = txl_tf.TransformerXL(config)
    memory = model.initial_memory(batch_size=1)
    token_ids = np.frombuffer(b"Carry what was read.", np.uint8)[None]
    nll, memory = model.score(token_ids[:, :-1], token_ids[:, 1:], memory)
    ```

    References:
     - [Dai et al., 2019](https://arxiv.org/abs/1901.02860)
    """

    def __init__(self, config, **kwargs):
        super().__init__(**kwargs)
        if isinstance(config, dict):
            config = ModelConfig.from_dict(config)
        self.config = config
        common = {"dtype": self.dtype_policy}

        def initializer():
            return keras.initializers.RandomNormal(stddev=config.initializer_stddev)

        self.embedding = TokenEmbedding(
            config.vocabulary_size,
            config.hidden_dim,
            embeddings_initializer=initializer(),
            name="embedding",
            **common,
        )
        self.blocks = [
            DecoderBlock(
                config.num_heads,
                config.head_dim,
                config.intermediate_dim,
                dropout=config.dropout,
                attention_dropout=config.attention_dropout,
                own_biases=not config.share_attention_biases,
                layer_norm_epsilon=config.layer_norm_epsilon,
                kernel_initializer=initializer(),
                name=f"block_{index}",
                **common,
            )
            for index in range(config.num_layers)
        ]
        self.embedding_dropout = SeededDropout(config.dropout, name="embedding_dropout", **common)
        self.position_dropout = SeededDropout(config.dropout, name="position_dropout", **common)
        self.output_dropout = SeededDropout(config.dropout, name="output_dropout", **common)
        self.softmax = TiedSoftmax(config.vocabulary_size, name="softmax", **common)
        self._build_layers()

    def _build_layers(self):
        hidden_shape = (None, None, self.config.hidden_dim)
        self.embedding.build((None, None))
        for block in self.blocks:
            block.build(hidden_shape)
        self.softmax.build(hidden_shape)
        if self.config.share_attention_biases:
            self.content_bias = self._shared_bias("content_bias")
            self.position_bias = self._shared_bias("position_bias")
        self.built = True

    def _shared_bias(self, name):
        return self.add_weight(
            shape=(self.config.num_heads, self.config.head_dim),
            initializer=keras.initializers.RandomNormal(stddev=self.config.initializer_stddev),
            name=name,
        )

    def call(self, token_ids, memory, dropout_seed=None, training=False):
        def drop(layer, tensor, site):
            return layer(tensor, seed=functional.fold_seed(dropout_seed, site), training=training)

        if len(memory.states) != self.config.num_layers:
            raise ValueError(
                f"`memory` must have states of {self.config.num_layers} layers. "
                f"Received: states of {len(memory.states)}"
            )
        segment_length = ops.shape(token_ids)[1]
        memory_length = memory.states[0].shape[1]
        hidden = drop(self.embedding_dropout, self.embedding(token_ids), 0)  # [B, T, D]
        position_encoding = functional.relative_positional_encoding(
            memory_length + segment_length,
            self.config.hidden_dim,
            self.config.clamp_length,
            dtype=self.compute_dtype,
        )
        position_encoding = drop(self.position_dropout, position_encoding, 1)  # [K, D]
        attention_mask = functional.causal_memory_mask(
            segment_length, memory_length, memory.valid_length, self.config.same_length
        )
        biases = {}
        if self.config.share_attention_biases:
            biases = {"content_bias": self.content_bias, "position_bias": self.position_bias}
        next_states = []
        for index, (block, state) in enumerate(zip(self.blocks, memory.states, strict=True)):
            next_states.append(functional.next_memory(state, hidden))
            hidden = block(
                hidden,
                position_encoding=position_encoding,
                memory=state,
                attention_mask=attention_mask,
                dropout_seed=functional.fold_seed(dropout_seed, _SITES_PER_BLOCK * (index + 1)),
                training=training,
                **biases,
            )
        next_valid_length = functional.next_valid_length(
            memory.valid_length, memory_length, segment_length
        )
        hidden = drop(self.output_dropout, hidden, 2)  # [B, T, D]
        return hidden, Memory(tuple(next_states), next_valid_length)

    def initial_memory(self, batch_size, memory_length=None):
        """Memory of rows that have read nothing yet.

        Args:
            batch_size: int. Number of rows `B`.
            memory_length: optional int. `M`, if not `config.memory_length`.

        Returns:
            A `Memory` with valid length 0.
        """
        return Memory.empty(
            num_layers=self.config.num_layers,
            batch_size=batch_size,
            memory_length=self.config.memory_length if memory_length is None else memory_length,
            hidden_dim=self.config.hidden_dim,
            dtype=self.compute_dtype,
        )

    def score(self, token_ids, target_ids, memory, dropout_seed=None, training=False):
        """Scores targets: how surprised the model is by each.

        Args:
            token_ids: int tensor `(B, T)`.
            target_ids: int tensor `(B, T)`; position `t` is the token after
                `token_ids[:, t]`.
            memory: `Memory` of the segments before.
            dropout_seed: optional int32 tensor `(2,)`.
            training: bool. Whether dropout is active.

        Returns:
            Tuple of the negative log-likelihood in nats, float32 `(B, T)`, and
            the next `Memory`.
        """
        hidden, memory = self(token_ids, memory, dropout_seed=dropout_seed, training=training)
        nll = self.softmax.negative_log_likelihood(hidden, target_ids, self.embedding.table)
        return nll, memory

    def log_probs(self, token_ids, memory):
        """Log-probabilities of every token of the vocabulary coming next.

        Args:
            token_ids: int tensor `(B, T)`.
            memory: `Memory` of the segments before.

        Returns:
            Tuple of a float32 tensor `(B, T, V)` and the next `Memory`.
        """
        hidden, memory = self(token_ids, memory)
        return self.softmax.log_probs(hidden, self.embedding.table), memory

    def get_config(self):
        return {**super().get_config(), "config": self.config.to_dict()}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**config)
