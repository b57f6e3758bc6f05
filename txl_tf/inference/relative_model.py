"""All layers of a Transformer-XL over keys and values, segment by segment.

Shape letters used in this module:
  B rows, T segment length, M memory length, K = M + T key length, C tokens that
  attend together, D hidden width, N heads, H head width, L layers.
"""

from keras import ops

from txl_tf import functional
from txl_tf.inference.blocks import BatchedBlock, PerHeadBlock
from txl_tf.inference.memory import KeyValueMemory, PerHeadMemory


class RelativeModel:
    """Inference view of a `TransformerXL` with fixed weights and a key-value memory.

    A `Memory` holds hidden states, and every segment projects all of them to
    keys and values again, and all position encodings too. With fixed weights
    these are always the same. Here memory holds the keys and values
    themselves, and the keys of all distances are computed once for a length.
    The numbers are those of the model with a `Memory` of the same length.

    Args:
        model: `TransformerXL` with relative positions: others are part of what
            is projected, and move with every segment.
        per_head: bool. Whether `PerHeadBlock` attends, and not `BatchedBlock`.
        tokens_together: optional int. About how many tokens attend together
            head by head, if more are read as segments; all of them by default.

    Attributes:
        config: `ModelConfig` of the model.
        biases: dict of the biases that all blocks share, or empty.
        blocks: list of `L` `BatchedBlock` or `PerHeadBlock`.
        memory_class: `KeyValueMemory`, or `PerHeadMemory` head by head.

    Call arguments:
        token_ids: int tensor `(B, T)` with values in `[0, V)`.
        memory: `KeyValueMemory` of the segments before.
        lengths: optional int32 tensor `(B,)`, from 0 to `T`: the tokens of each
            row that are remembered; or a scalar, where all rows have as many.
        position_keys: optional result of `position_keys(M + C)`, where `C` is
            `tokens_together(T, segment_length)`; computed where it is not given.
        segment_length: optional int. Reads the tokens as segments of this length,
            several at once: the results are those of one after the other, and
            large products take less time per token than small ones.
        document_starts: optional bool tensor `(B, T)`, as in `TransformerXL`; not
            with `lengths`.

    Returns:
        Tuple of a list and the next `KeyValueMemory`. The list has the embeddings
        and the output of every block, `L + 1` tensors `(B, T, D)`.

    Raises:
        ValueError: If the positions of the model are absolute.
    """

    def __init__(self, model, per_head=False, tokens_together=None):
        config = model.config
        if not config.has_relative_positions:
            raise ValueError(
                "Only memory without positions can be kept as keys and values: "
                '`position_encoding` must be "transformer_xl" or "shaw". '
                f"Received: position_encoding={config.position_encoding!r}"
            )
        self.config = config
        self.model = model
        self._per_head = per_head
        self._tokens_together = tokens_together
        self.biases = {}
        if config.share_attention_biases:
            self.biases = {"content_bias": model.content_bias, "position_bias": model.position_bias}
        self._block_class = PerHeadBlock if per_head else BatchedBlock
        self.memory_class = PerHeadMemory if per_head else KeyValueMemory
        self.blocks = [self._block_class(block, self.biases) for block in model.blocks]

    def initial_memory(self, num_rows, memory_length):
        """Memory of rows that have read nothing yet.

        Args:
            num_rows: int. `B`.
            memory_length: int. `M`.

        Returns:
            A `KeyValueMemory` with valid length 0.
        """
        config = self.config
        dtype = self.model.compute_dtype
        values_shape = (num_rows, config.num_heads, memory_length, config.head_dim)
        keys_shape = list(values_shape)
        keys_shape.insert(self._block_class.keys_axis, keys_shape.pop(2))
        layers = range(config.num_layers)
        return self.memory_class(
            tuple(ops.zeros(keys_shape, dtype) for _ in layers),
            tuple(ops.zeros(values_shape, dtype) for _ in layers),
            ops.zeros((num_rows,), dtype="int32"),
        )

    def project_memory(self, memory):
        """Returns the keys and values of a memory of hidden states.

        Args:
            memory: `Memory`.

        Returns:
            A `KeyValueMemory` of the same length.
        """
        projected = [
            block.project(state) for block, state in zip(self.blocks, memory.states, strict=True)
        ]
        keys, values = zip(*projected, strict=True)
        return self.memory_class(keys, values, memory.valid_length)

    def position_keys(self, key_length):
        """Returns the keys of all distances, of every layer.

        Args:
            key_length: int. `K`: memory and the tokens that attend together.

        Returns:
            Tuple of `L` `DistanceKeys`.
        """
        encoding = self.model.positions.sinusoids(
            key_length, self.config.hidden_dim, self.model.compute_dtype
        )
        return tuple(
            block.attention.project_distances(key_length, encoding) for block in self.model.blocks
        )

    def tokens_together(self, num_tokens, segment_length=None):
        """How many tokens attend together; their distances are what keys are needed of.

        Args:
            num_tokens: int. `T`.
            segment_length: as in a call.

        Returns:
            A positive int.
        """
        if not self._per_head or self._tokens_together is None or segment_length is None:
            return num_tokens
        num_segments = max(1, self._tokens_together // segment_length)
        return min(num_tokens, num_segments * segment_length)

    def __call__(
        self,
        token_ids,
        memory,
        lengths=None,
        position_keys=None,
        segment_length=None,
        document_starts=None,
    ):
        memory_length = memory.memory_length
        num_tokens = ops.shape(token_ids)[1]
        if position_keys is None:
            together = self.tokens_together(num_tokens, segment_length)
            position_keys = self.position_keys(memory_length + together)
        hidden = self.model.embedding(token_ids)  # [B, T, D]
        hidden_states = [hidden]
        masks = self._masks(num_tokens, memory, segment_length, document_starts)
        next_keys, next_values = [], []
        for block, keys, values, distance_keys in zip(
            self.blocks, memory.keys, memory.values, position_keys, strict=True
        ):
            hidden, keys, values = block(hidden, keys, values, masks, distance_keys)
            hidden_states.append(hidden)
            axis = block.keys_axis
            next_keys.append(functional.last_positions(keys, axis, lengths, memory_length))
            next_values.append(functional.last_positions(values, 2, lengths, memory_length))
        num_read = num_tokens if lengths is None else lengths
        valid_length = functional.next_valid_length(
            memory.valid_length, memory_length, num_read, document_starts
        )
        return hidden_states, self.memory_class(tuple(next_keys), tuple(next_values), valid_length)

    def _masks(self, num_tokens, memory, segment_length, document_starts):
        """The argument `mask_scores` of the blocks."""
        memory_length, valid_length = memory.memory_length, memory.valid_length
        same_document = None
        if document_starts is not None:
            same_document = functional.same_document_mask(document_starts, memory_length)
        if not self._per_head:
            return self.mask_scores(
                num_tokens, memory_length, valid_length, segment_length, same_document
            )
        together = self.tokens_together(num_tokens, segment_length)
        masks = []
        for start in range(0, num_tokens, together):
            stop = min(start + together, num_tokens)
            filled = ops.minimum(valid_length + start, memory_length)
            of_part = None
            if same_document is not None:
                of_part = same_document[:, :, start:stop, start : memory_length + stop]
            scores = self.mask_scores(stop - start, memory_length, filled, segment_length, of_part)
            masks.append(ops.squeeze(scores, axis=1))  # [B, C, M + C + 1]
        return tuple(masks)

    def mask_scores(
        self, num_tokens, memory_length, valid_length, segment_length=None, same_document=None
    ):
        """Scores over distances, `(B, 1, T, K + 1)`: 0 where attention is allowed."""
        allowed = self.model.positions.mask(num_tokens, memory_length, valid_length)
        if segment_length is not None and segment_length != num_tokens:
            own_segment = _own_segment_mask(num_tokens, memory_length, segment_length)
            allowed = ops.logical_and(allowed, own_segment)
        if same_document is not None:
            allowed = ops.logical_and(allowed, same_document)
        scores = functional.mask_scores(ops.zeros((), self.model.compute_dtype), allowed)
        return functional.unshift_padded(scores)


def _own_segment_mask(num_tokens, memory_length, segment_length):
    """The memory of each segment, where several are read at once.

    Read one after the other, a segment forgets what is farther back than its
    memory. Read together, each begins its memory where it would have.
    """
    queries = ops.arange(num_tokens, dtype="int32")
    first_key = queries // segment_length * segment_length
    keys = ops.arange(memory_length + num_tokens, dtype="int32")
    allowed = ops.expand_dims(keys, 0) >= ops.expand_dims(first_key, 1)  # [T, K]
    return ops.expand_dims(allowed, (0, 1))
