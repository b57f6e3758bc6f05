"""Transformer-XL for inference, with keys and values remembered.

Shape letters used in this module:
  B rows, T segment length, M memory length, K = M + T key length,
  D hidden width, N heads, H head width, V vocabulary, L layers.
"""

from keras import ops

from txl_tf import functional
from txl_tf.models.projected_block import ProjectedBlock
from txl_tf.models.projected_memory import ProjectedMemory


class ProjectedTransformerXL:
    """A view on a `TransformerXL` whose weights do not change.

    A `Memory` holds hidden states, and every segment projects all of them to
    keys and values again, and all position encodings too. With fixed weights
    these are always the same. Here memory holds the keys and values
    themselves, and the keys of all distances are computed once for a length:

    ```python
    projected = ProjectedTransformerXL(model)
    memory = projected.initial_memory(batch_size=1)
    position_keys = projected.position_keys(memory_length + segment_length)
    for token_ids, target_ids in segments:
        nll, memory = projected.score(token_ids, target_ids, memory, position_keys)
    ```

    The numbers are those of the model with a `Memory` of the same length. That
    holds for `"transformer_xl"` and `"shaw"` positions; others are part of what
    is projected, and move with every segment.

    Args:
        model: `TransformerXL`.

    Attributes:
        config: `TransformerXLConfig` of the model.
        biases: dict of the biases that all blocks share, or empty.
        blocks: list of `L` `ProjectedBlock`.

    Call arguments:
        token_ids: int tensor `(B, T)` with values in `[0, V)`.
        memory: `ProjectedMemory` of the segments before.
        position_keys: optional result of `position_keys(M + T)`; computed where
            it is not given.
        segment_length: optional int. Reads the tokens as segments of this length,
            several at once: the results are those of one after the other, and
            large products take less time per token than small ones.

    Returns:
        Tuple of the hidden states `(B, T, D)` and the next `ProjectedMemory`.

    Raises:
        ValueError: If the positions of the model are absolute.
    """

    _block_class = ProjectedBlock

    def __init__(self, model):
        encoding = model.config.position_encoding
        if encoding not in ("transformer_xl", "shaw"):
            raise ValueError(
                "Only memory without positions can be projected once and for all: "
                '`position_encoding` must be "transformer_xl" or "shaw". '
                f"Received: position_encoding={encoding!r}"
            )
        self.config = model.config
        self._model = model
        self.biases = {}
        if encoding == "transformer_xl" and model.config.share_attention_biases:
            self.biases = {"content_bias": model.content_bias, "position_bias": model.position_bias}
        self.blocks = [self._block_class(block, self.biases) for block in model.blocks]

    def initial_memory(self, batch_size, memory_length=None):
        """Memory of rows that have read nothing yet.

        Args:
            batch_size: int. Number of rows `B`.
            memory_length: optional int. `M`, if not `config.memory_length`.

        Returns:
            A `ProjectedMemory` with valid length 0.
        """
        config = self.config
        if memory_length is None:
            memory_length = config.memory_length if config.recurrence else 0
        dtype = self._model.compute_dtype
        values_shape = (batch_size, config.num_heads, memory_length, config.head_dim)
        keys_shape = list(values_shape)
        keys_shape.insert(self._block_class.keys_axis, keys_shape.pop(2))
        layers = range(config.num_layers)
        return ProjectedMemory(
            tuple(ops.zeros(keys_shape, dtype) for _ in layers),
            tuple(ops.zeros(values_shape, dtype) for _ in layers),
            ops.zeros((batch_size,), dtype="int32"),
        )

    def project_memory(self, memory):
        """The keys and values of a memory of hidden states.

        Args:
            memory: `Memory`.

        Returns:
            A `ProjectedMemory` of the same length.
        """
        projected = [
            block.project(state) for block, state in zip(self.blocks, memory.states, strict=True)
        ]
        keys, values = zip(*projected, strict=True)
        return ProjectedMemory(keys, values, memory.valid_length)

    def position_keys(self, key_length):
        """The keys of all distances, of every layer.

        Args:
            key_length: int. `K`: memory and segment.

        Returns:
            Tuple of `L` `DistanceKeys`.
        """
        encoding = functional.relative_positional_encoding(
            key_length,
            self.config.hidden_dim,
            self.config.clamp_length,
            dtype=self._model.compute_dtype,
        )
        return tuple(block.project_distances(key_length, encoding) for block in self.blocks)

    def __call__(self, token_ids, memory, position_keys=None, segment_length=None):
        memory_length = memory.values[0].shape[2]
        num_tokens = ops.shape(token_ids)[1]
        if position_keys is None:
            at_once = self.tokens_at_once(num_tokens, segment_length)
            position_keys = self.position_keys(memory_length + at_once)
        hidden = self._model.embedding(token_ids)  # [B, T, D]
        masks = self._masks(num_tokens, memory_length, memory.valid_length, segment_length)
        next_keys, next_values = [], []
        for block, keys, values, distance_keys in zip(
            self.blocks, memory.keys, memory.values, position_keys, strict=True
        ):
            hidden, keys, values = block(hidden, keys, values, masks, distance_keys)
            newest = [slice(None)] * block.keys_axis + [slice(num_tokens, None)]
            next_keys.append(keys[tuple(newest)])
            next_values.append(values[:, :, num_tokens:])
        valid_length = functional.next_valid_length(memory.valid_length, memory_length, num_tokens)
        return hidden, ProjectedMemory(tuple(next_keys), tuple(next_values), valid_length)

    def tokens_at_once(self, num_tokens, segment_length=None):
        """How many tokens attend together; their distances are what keys are needed of.

        Args:
            num_tokens: int. `T`.
            segment_length: as in a call.

        Returns:
            A positive int: all of them.
        """
        del segment_length
        return num_tokens

    def _masks(self, num_tokens, memory_length, valid_length, segment_length=None):
        """What blocks are given as `mask_scores`."""
        return self.mask_scores(num_tokens, memory_length, valid_length, segment_length)

    def mask_scores(self, num_tokens, memory_length, valid_length, segment_length=None):
        """What the blocks add to their scores over distances.

        Args:
            num_tokens: int. `T`.
            memory_length: int. `M`.
            valid_length: int32 tensor `(B,)`.
            segment_length: as in a call.

        Returns:
            Float tensor `(B, 1, T, K + 1)`.
        """
        allowed = functional.causal_memory_mask(
            num_tokens,
            memory_length,
            valid_length,
            self.config.same_length,
            self.config.same_length_keys,
        )
        if segment_length is not None and segment_length != num_tokens:
            own_segment = _own_segment_mask(num_tokens, memory_length, segment_length)
            allowed = ops.logical_and(allowed, own_segment)
        scores = functional.mask_scores(ops.zeros((), self._model.compute_dtype), allowed)
        return functional.unshift_padded(scores)

    def score(self, token_ids, target_ids, memory, position_keys=None, segment_length=None):
        """Scores targets: how surprised the model is by each.

        Args:
            token_ids: int tensor `(B, T)`.
            target_ids: int tensor `(B, T)`; position `t` is the token after
                `token_ids[:, t]`.
            memory: `ProjectedMemory` of the segments before.
            position_keys: as in a call.
            segment_length: as in a call.

        Returns:
            Tuple of the negative log-likelihood in nats, float32 `(B, T)`, and
            the next `ProjectedMemory`.
        """
        hidden, memory = self(token_ids, memory, position_keys, segment_length)
        return self._model.negative_log_likelihood(hidden, target_ids), memory

    def log_probs(self, token_ids, memory, position_keys=None):
        """Log-probabilities of every token of the vocabulary coming next.

        Args:
            token_ids: int tensor `(B, T)`.
            memory: `ProjectedMemory` of the segments before.
            position_keys: as in a call.

        Returns:
            Tuple of a float32 tensor `(B, T, V)` and the next `ProjectedMemory`.
        """
        hidden, memory = self(token_ids, memory, position_keys)
        return self._model.log_probs_of(hidden), memory


def _own_segment_mask(num_tokens, memory_length, segment_length):
    """What segments may attend to when several are read at once.

    Read one after the other, a segment forgets what is farther back than its
    memory. Read together, each begins its memory where it would have.
    """
    queries = ops.arange(num_tokens, dtype="int32")
    first_key = queries // segment_length * segment_length
    keys = ops.arange(memory_length + num_tokens, dtype="int32")
    allowed = ops.expand_dims(keys, 0) >= ops.expand_dims(first_key, 1)  # [T, K]
    return ops.expand_dims(allowed, (0, 1))
