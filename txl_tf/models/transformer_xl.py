"""Transformer-XL as a language model.

Shape letters used in this module:
  B rows, T segment length, M memory length, K = M + T key length,
  D hidden width, V vocabulary, L layers.
"""

import dataclasses
from typing import Any

import keras
from keras import ops

from txl_tf import functional
from txl_tf.config.model import ModelConfig
from txl_tf.layers.adaptive_softmax import AdaptiveEmbedding, AdaptiveSoftmax
from txl_tf.layers.attention_operators import AllHeads
from txl_tf.layers.compiled_parts import rematerialized_call
from txl_tf.layers.decoder_block import DecoderBlock, add_positions, initializer_of
from txl_tf.layers.seeded_dropout import SeededDropout
from txl_tf.layers.visible_keys import VisibleKeys
from txl_tf.models.language_model import LanguageModel
from txl_tf.models.memory import KeyValueMemory, Memory, MemoryBesideRecent, check_memory
from txl_tf.tpu_kernels.on_chip_attention import OnChipAttention

# Sites of `functional.fold_seed` for each block, which draws at four: 0 attention probabilities, 1
# attended values, 2 inside the feed-forward layer, 3 its results; 4 to 7 are not used. Block `i`
# has the sites from `8 * (i + 1)` on. The first eight are the model's own: 0 embeddings, 1
# positions, 2 outputs. Another number would draw other masks.
_SITES_PER_BLOCK = 8


def _is_embedded(inputs):
    """True if inputs are vectors instead of token ids."""
    if getattr(inputs, "dtype", None) is None or len(inputs.shape) != 3:
        return False
    return keras.backend.is_float_dtype(keras.backend.standardize_dtype(inputs.dtype))


@dataclasses.dataclass(frozen=True, eq=False)
class Reading:
    """How a call reads its tokens, where this does not follow from the model alone.

    Attributes:
        config: `ModelConfig` of the lengths; an evaluation may have other lengths.
        operator: an object of `layers.attention_operators`.
        memory_length: int. Tokens that are remembered.
        distances: optional tuple of the `DistanceKeys` of every layer. `None` computes them.
        segment_length: optional int. Tokens of a segment, if more are read at once.
        num_unused: int. Places of memory that are never filled.
    """

    config: ModelConfig
    operator: Any
    memory_length: int
    distances: Any = None
    segment_length: int | None = None
    num_unused: int = 0

    def visible_keys(self, num_tokens, valid_length, document_starts=None, lengths=None):
        """Returns the `VisibleKeys` of `T` tokens after a memory."""
        return VisibleKeys(
            num_tokens=num_tokens,
            memory_length=self.memory_length,
            num_unused=self.num_unused,
            valid_length=valid_length,
            farthest=self.config.farthest(self.memory_length),
            document_starts=document_starts,
            segment_length=self.segment_length,
            lengths=lengths,
        )


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
        reading: optional `Reading`, with which memory may also hold keys and values.

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
        """Returns the hidden states of all layers and the next memory; arguments as in a call.

        The hidden states are a list of the embeddings and the output of every block, `L + 1`
        tensors `(B, T, D)`; the last one after its dropout.
        """
        if reading is None:
            check_memory(memory, Memory, token_ids)
        if self.rematerialize and training and dropout_seed is None:
            dropout_seed = self._drawn_seed()

        def drop(layer, tensor, site, seed=dropout_seed):
            return layer(tensor, seed=functional.fold_seed(seed, site), training=training)

        def drop_positions(encoding):
            seed = functional.common_seed(dropout_seed)  # positions are shared by rows
            return drop(self.position_dropout, encoding, 1, seed)

        # 1. The keys that each query sees.
        reading = reading or Reading(self.config, self._operator(), memory.memory_length)
        visible = reading.visible_keys(
            ops.shape(token_ids)[1], memory.valid_length, document_starts, lengths
        )
        attend = reading.operator.bind(visible, self.compute_dtype)
        # 2. Embeddings and positions.
        hidden = drop(self.embedding_dropout, self.embed(token_ids), 0)  # [B, T, D]
        constants = {"attend": attend, "training": training}
        position, distances = {}, [None] * len(self.blocks)
        if reading.distances is None:
            key_length = visible.num_places + visible.num_tokens
            position = self._position_arguments(key_length, drop_positions, reading.config)
        else:
            distances, position = reading.distances, self._bias_arguments()
        # 3. The blocks, each with its own memory and dropout.
        rematerializes = self.rematerialize and isinstance(memory, Memory)
        hidden_states, kept = [hidden], []
        for index, block in enumerate(self.blocks):
            of_memory = memory.of_layer(index)
            if index == 0 and self.config.position_encoding == "sinusoidal":
                encoding = self._sinusoids(visible.num_places + visible.num_tokens, reading.config)
                added = drop_positions(encoding)
                hidden, state = add_positions(added, hidden, of_memory["memory"])
                of_memory = {"memory": state}
            seed = functional.fold_seed(dropout_seed, _SITES_PER_BLOCK * (index + 1))
            tensors = {"inputs": hidden, "dropout_seed": seed, **of_memory, **position}
            options = {**constants, "distances": distances[index]}
            if rematerializes:
                outputs = rematerialized_call(block, tensors, options)
            else:
                outputs = block(**tensors, **options)
            hidden, next_kept = outputs if "kept" in of_memory else (outputs, None)
            kept.append(next_kept)
            hidden_states.append(hidden)
        # 4. The next memory, from the inputs of every block.
        next_memory = memory.advanced(hidden_states[:-1], kept, visible)
        hidden_states[-1] = drop(self.output_dropout, hidden, 2)
        return hidden_states, next_memory

    def _operator(self):
        """Returns the way to attend, without another one by an execution plan."""
        if self.attention_kernel is None:
            return AllHeads()
        return OnChipAttention(self.attention_kernel)

    def attention_inputs(self, layer, hidden, memory):
        """Returns the arguments of a layer's attention, from 0, without absolute positions.

        `hidden` are the inputs `(B, T, D)` of the block, from `hidden_states`.
        """
        block, state = self.blocks[layer], memory.of_layer(layer)["memory"]
        state = ops.cast(state, hidden.dtype)
        reading = Reading(self.config, self._operator(), memory.memory_length)
        visible = reading.visible_keys(ops.shape(hidden)[1], memory.valid_length)
        key_length = visible.num_places + visible.num_tokens
        position = self._position_arguments(key_length, lambda each: each, self.config)
        if self.config.pre_norm:
            hidden, state = block.attention_norm(hidden), block.attention_norm(state)
        mask = visible.mask_over_keys()
        return {"inputs": hidden, "memory": state, "attention_mask": mask, **position}

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
        encoding = None
        if config.position_encoding == "transformer_xl":
            encoding = self._sinusoids(key_length, config)
        return tuple(
            block.attention.keys_of_distances(key_length, encoding) for block in self.blocks
        )

    def _sinusoids(self, key_length, config):
        """Returns the encodings `(K, D)` of the distances `K - 1` to 0."""
        return functional.relative_positional_encoding(
            key_length, config.hidden_dim, config.clamp_length, self.compute_dtype
        )

    def _position_arguments(self, key_length, drop_positions, config):
        if self.config.position_encoding != "transformer_xl":
            return {}
        encoding = drop_positions(self._sinusoids(key_length, config))
        return {"position_encoding": encoding, **self._bias_arguments()}

    def _bias_arguments(self):
        if not self.config.share_attention_biases:
            return {}
        return {"content_bias": self.content_bias, "position_bias": self.position_bias}

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
