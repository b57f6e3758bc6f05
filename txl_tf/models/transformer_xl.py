"""Transformer-XL as a language model.

Shape letters used in this module:
  B rows, T segment length, M memory length, K = M + T key length,
  D hidden width, V vocabulary, L layers.
"""

import keras
from keras import ops

from txl_tf import functional
from txl_tf.config.model import ModelConfig
from txl_tf.layers.adaptive_softmax import AdaptiveEmbedding, AdaptiveSoftmax
from txl_tf.layers.attention.operators import AllHeads
from txl_tf.layers.compiled_parts import rematerialized_call
from txl_tf.layers.configured_layer import initializer_of
from txl_tf.layers.decoder_block import DecoderBlock
from txl_tf.layers.seeded_dropout import SeededDropout
from txl_tf.models.language_model import LanguageModel
from txl_tf.models.memory import KeyValueMemory, Memory, MemoryBesideRecent, check_memory
from txl_tf.models.reading import Reading
from txl_tf.stateless_random import common_seed, fold_seed
from txl_tf.tpu_kernels.on_chip_attention import OnChipAttention

# Sites of `fold_seed` where the model itself draws dropout masks. Block `i` has the sites from
# `8 * (i + 1)` on, of which `layers/decoder_block.py` uses four. So no two places share a site.
# Other numbers would draw other masks.
_EMBEDDINGS, _POSITIONS, _OUTPUTS = range(3)
_SITES_PER_BLOCK = 8


def _is_embedded(inputs):
    """True if inputs are vectors instead of token ids."""
    if getattr(inputs, "dtype", None) is None or len(inputs.shape) != 3:
        return False
    return keras.backend.is_float_dtype(keras.backend.standardize_dtype(inputs.dtype))


@keras.saving.register_keras_serializable(package="txl_tf")
class TransformerXL(LanguageModel):
    """Transformer-XL language model, which carries hidden states from segment to segment.

    Memory is an argument and a result of every call; there is no hidden state. The constructor
    creates the weights.

    Args:
        config: `ModelConfig`, or the dict that its `to_dict` returns.
        rematerialize: bool. If `True`, the backward pass computes every block again from its
            inputs instead of keeping its activations. This takes a third more arithmetic and far
            less memory, and does not change results.
        attention_kernel: optional `AttentionKernel`, which keeps the scores of attention on the
            chip of a TPU. The number of rows must then be known. It is not saved.
        **kwargs: other keyword arguments passed to `keras.Model`.

    Call arguments:
        token_ids: int tensor `(B, T)` with values in `[0, V)`. Or a float tensor `(B, T, D)` of
            inputs embedded by the user's model, which replace the scaled embeddings.
        memory: `Memory` of the segments before, from `initial_memory` or a
            call. Its length may differ from `config.memory_length`.
        dropout_seed: optional int32 tensor `(B, 2)` or `(2,)`, see `SeededDropout`. It determines
            all dropout masks.
        document_starts: optional bool tensor `(B, T)`, true for the first token of each document.
            With it no token attends to earlier documents, and the next memory only has the last
            document.
        training: bool. If `True`, dropout is active.
        lengths: optional int32 tensor `(B,)` or `()`, from 0 to `T`: the tokens of each row that
            enter memory.
        reading: optional `Reading` of an inference engine. With it memory may also hold keys and
            values.

    Returns:
        Tuple of the hidden states `(B, T, D)` and the next memory.

    Raises:
        ValueError: If ids are not in `[0, V)`, see `LanguageModel`.

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

    config_class = ModelConfig

    def __init__(
        self, config, rematerialize=False, attention_kernel=None, name="transformer_xl", **kwargs
    ):
        # A new name for every model would change the paths of weights.
        super().__init__(config, name=name, **kwargs)
        config = self.config
        self.rematerialize = rematerialize
        self.attention_kernel = attention_kernel
        common = {"dtype": self.dtype_policy}
        self.embedding = AdaptiveEmbedding(name="embedding", **self._vocabulary_arguments())
        self.blocks = [
            DecoderBlock(config, name=f"block_{index}", **common)
            for index in range(config.num_layers)
        ]
        shared_axes = (1,) if config.variational_dropout else ()
        self.embedding_dropout = SeededDropout(
            config.dropout, shared_axes, name="embedding_dropout", **common
        )
        self.position_dropout = SeededDropout(config.dropout, name="position_dropout", **common)
        self.output_dropout = SeededDropout(
            config.dropout, shared_axes, name="output_dropout", **common
        )
        self.softmax = AdaptiveSoftmax(
            share_tail_projections=config.share_tail_projections,
            tie_weights=config.tie_weights,
            name="softmax",
            **self._vocabulary_arguments(),
        )
        hidden_shape = (None, None, config.hidden_dim)
        self.embedding.build((None, None))
        for block in self.blocks:
            block.build(hidden_shape)
        self.softmax.build(hidden_shape)
        if config.share_attention_biases:
            self.content_bias = self._shared_bias("content_bias")
            self.position_bias = self._shared_bias("position_bias")
        self.built = True

    def _vocabulary_arguments(self):
        """Returns the arguments that embedding and softmax share, with new initializers."""
        config = self.config
        return {
            **config.clusters.to_dict(),
            "embeddings_initializer": initializer_of(config, config.initializer_stddev),
            "projection_initializer": initializer_of(config, config.projection_stddev),
            "dtype": self.dtype_policy,
        }

    def _shared_bias(self, name):
        # Not `add_weight`, which would put the name of the model into the path.
        return keras.Variable(
            initializer_of(self.config, self.config.initializer_stddev),
            shape=(self.config.num_heads, self.config.head_dim),
            dtype=self.variable_dtype,
            name=name,
        )

    def freeze(self, parts):
        super().freeze(parts)
        if self.config.share_attention_biases:
            # All blocks share the biases, so they train if any block does.
            is_trained = len(parts.layers) < self.config.num_layers
            self.content_bias.trainable = self.position_bias.trainable = is_trained

    def build(self, token_ids_shape, memory_shape=None):
        """Does nothing: the weights exist. Keras' summary only shows shapes of built models."""

    @property
    def output_shape(self):
        """Shape of the hidden states, shown in Keras' summary."""
        return (None, None, self.config.hidden_dim)

    def check_inputs(self, token_ids):
        """Raises ValueError for ids not in `[0, V)`; embedded inputs are not checked."""
        if not _is_embedded(token_ids):
            super().check_inputs(token_ids)

    def embed(self, inputs):
        """Embeds token ids `(B, T)`; vectors `(B, T, D)` are only cast to the compute dtype."""
        embedded = inputs if _is_embedded(inputs) else self.embedding(inputs)
        return ops.cast(embedded, self.compute_dtype)

    def call(
        self,
        token_ids,
        memory,
        dropout_seed=None,
        document_starts=None,
        training=False,
        lengths=None,
        reading=None,
    ):
        hidden_states, memory = self.hidden_states(
            token_ids, memory, dropout_seed, document_starts, training, lengths, reading
        )
        return hidden_states[-1], memory

    def hidden_states(
        self,
        token_ids,
        memory,
        dropout_seed=None,
        document_starts=None,
        training=False,
        lengths=None,
        reading=None,
    ):
        """Returns the hidden states of all layers and the next memory; arguments are as in a call.

        The hidden states are a list of `L + 1` tensors `(B, T, D)`: the embeddings and the output
        of every block. The last output has passed its dropout.
        """
        if reading is None:
            check_memory(memory, Memory, token_ids)
            reading = Reading(self.config, self._operator(), memory.memory_length)
        if self.rematerialize and training and dropout_seed is None:
            dropout_seed = self._drawn_seed()

        def drop(layer, tensor, site, seed=dropout_seed):
            return layer(tensor, seed=fold_seed(seed, site), training=training)

        visible = reading.visible_keys(
            ops.shape(token_ids)[1], memory.valid_length, document_starts, lengths
        )
        attend = reading.operator.bind(visible, self.compute_dtype)
        hidden = drop(self.embedding_dropout, self.embed(token_ids), _EMBEDDINGS)  # [B, T, D]
        hidden_states, next_kept = [hidden], []
        memory_arguments = [memory.of_layer(index) for index in range(len(self.blocks))]
        encoding = None
        if reading.distances is None:
            encoding = self._encoding(visible.num_places + visible.num_tokens, reading.config)
        if encoding is not None:
            # All rows share the positions, and so their dropout mask.
            encoding = drop(self.position_dropout, encoding, _POSITIONS, common_seed(dropout_seed))
        if self.config.position_encoding == "sinusoidal":
            hidden, state = functional.add_positions(
                encoding, hidden, memory_arguments[0]["memory"]
            )
            memory_arguments[0] = {"memory": state}
        position = self._position_arguments(encoding)
        distances = reading.distances or [None] * len(self.blocks)
        for index, block in enumerate(self.blocks):
            seed = fold_seed(dropout_seed, _SITES_PER_BLOCK * (index + 1))
            tensors = {
                "inputs": hidden,
                "dropout_seed": seed,
                **memory_arguments[index],
                **position,
            }
            options = {"attend": attend, "training": training, "distances": distances[index]}
            if self.rematerialize and isinstance(memory, Memory):
                outputs = rematerialized_call(block, tensors, options)
            else:
                outputs = block(**tensors, **options)
            hidden, keys_and_values = outputs if "kept" in tensors else (outputs, None)
            next_kept.append(keys_and_values)
            hidden_states.append(hidden)
        # Memory holds the inputs of every block.
        next_memory = memory.advanced(hidden_states[:-1], next_kept, visible)
        hidden_states[-1] = drop(self.output_dropout, hidden, _OUTPUTS)
        return hidden_states, next_memory

    def _operator(self):
        """Returns the operator of calls without a `reading`."""
        if self.attention_kernel is None:
            return AllHeads()
        return OnChipAttention(self.attention_kernel)

    def attention_inputs(self, layer, hidden, memory):
        """Returns the arguments of the attention of a layer, which count from 0.

        `hidden`, from `hidden_states`, is the inputs `(B, T, D)` of the layer's block. Sinusoidal
        positions are not added to them.
        """
        _, inputs, state = self.blocks[layer].attention_inputs(hidden, memory.states[layer])
        reading = Reading(self.config, self._operator(), memory.memory_length)
        visible = reading.visible_keys(ops.shape(hidden)[1], memory.valid_length)
        encoding = self._encoding(visible.num_places + visible.num_tokens, self.config)
        arguments = {"inputs": inputs, "memory": state, "attention_mask": visible.mask_over_keys()}
        return arguments | self._position_arguments(encoding)

    def _drawn_seed(self):
        """Draws one seed for a call; code that runs twice must not draw twice."""
        for layer in (self.embedding_dropout, self.blocks[0].attention.probability_dropout):
            if layer.rate > 0:
                return ops.cast(layer.seed_generator.next(), "int32")
        return None

    def check_memory(self, memory, token_ids):
        if not isinstance(memory, KeyValueMemory | MemoryBesideRecent):
            super().check_memory(memory, token_ids)

    def distance_keys(self, key_length, config):
        """Returns the `DistanceKeys` of all layers, of `K` distances; they depend on weights."""
        encoding = self._encoding(key_length, config)
        return tuple(
            block.attention.keys_of_distances(key_length, encoding) for block in self.blocks
        )

    def _encoding(self, key_length, config):
        """Returns the sinusoids `(K, D)` of the distances `K - 1` to 0, or `None` without them."""
        if config.position_encoding not in ("transformer_xl", "sinusoidal"):
            return None
        return functional.relative_positional_encoding(
            key_length, config.hidden_dim, config.clamp_length, self.compute_dtype
        )

    def _position_arguments(self, encoding):
        """Returns the arguments of attention for positions, besides `distances`."""
        arguments = {}
        if self.config.position_encoding == "transformer_xl":
            arguments["position_encoding"] = encoding
        if self.config.share_attention_biases:
            arguments |= {"content_bias": self.content_bias, "position_bias": self.position_bias}
        return arguments

    def initial_memory(self, batch_size, memory_length=None, zeros_count=False):
        """Returns the memory of rows that have read nothing yet.

        Args:
            batch_size: int. Number of rows `B`.
            memory_length: optional int. `M`, if not `config.memory_length`.
            zeros_count: bool. If `True`, empty positions are attended to as zeros, which gives
                the results of the official code in its first segments.

        Returns:
            A `Memory` of zeros with valid length 0, or `M` with `zeros_count`.
        """
        if memory_length is None:
            memory_length = self.config.effective_memory_length
        shape = (batch_size, memory_length, self.config.hidden_dim)
        states = (ops.zeros(shape, self.compute_dtype) for _ in self.blocks)
        valid_length = ops.full((batch_size,), memory_length if zeros_count else 0, "int32")
        return Memory(tuple(states), valid_length)

    def get_config(self):
        return {**super().get_config(), "rematerialize": self.rematerialize}
