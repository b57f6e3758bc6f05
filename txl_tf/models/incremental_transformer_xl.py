"""Transformer-XL for writing: one token at a time, or texts of several lengths.

Shape letters used in this module:
  B rows of memory, R rows, T segment length, M memory length, C capacity for
  recent tokens, D hidden width, N heads, H head width, V vocabulary, L layers.
"""

from keras import ops

from txl_tf import functional
from txl_tf.models.folded_distances import FoldedDistances
from txl_tf.models.projected_memory import ProjectedMemory
from txl_tf.models.projected_transformer_xl import ProjectedTransformerXL
from txl_tf.models.recent_memory import RecentMemory
from txl_tf.models.token_block import TokenBlock
from txl_tf.models.token_constants import TokenConstants

# Folding reads less and computes more; with more rows than this it costs more.
_MAX_FOLDED_ROWS = 2


class IncrementalTransformerXL:
    """A view on a `TransformerXL` whose weights do not change, for generation.

    Segments of texts that end at different places are read with `read`, tokens
    one at a time with `step`. While tokens are written, memory stays as it is
    and what is new is beside it, until `append` takes it over:

    ```python
    incremental = IncrementalTransformerXL(model)
    memory = incremental.read(token_ids, lengths, incremental.initial_memory(batch_size=2))
    recent = incremental.initial_recent(2, capacity=16)
    constants = incremental.constants(2, memory_length)
    for token_ids in some_tokens:
        log_probs, recent = incremental.step(token_ids, memory, recent, constants)
    memory = incremental.append(memory, recent, lengths=[16, 16])
    ```

    The numbers are those of the model that reads one token at a time with a
    `Memory` of `M`.

    Args:
        model: `TransformerXL` with `"transformer_xl"` or `"shaw"` positions.

    Raises:
        ValueError: If the positions of the model are absolute.
    """

    def __init__(self, model):
        self.config = model.config
        self._model = model
        self._projected = ProjectedTransformerXL(model)
        self._token_blocks = [TokenBlock(block, self._projected.biases) for block in model.blocks]

    @property
    def _has_sinusoids(self):
        return self.config.position_encoding == "transformer_xl"

    def initial_memory(self, batch_size, memory_length=None):
        """Memory of rows that have read nothing yet.

        Args:
            batch_size: int. Number of rows `B`.
            memory_length: optional int. `M`, if not `config.memory_length`.

        Returns:
            A `ProjectedMemory` with valid length 0.
        """
        return self._projected.initial_memory(batch_size, memory_length)

    def project_memory(self, memory):
        """The keys and values of a memory of hidden states.

        Args:
            memory: `Memory`.

        Returns:
            A `ProjectedMemory` of the same length.
        """
        return self._projected.project_memory(memory)

    def position_keys(self, key_length):
        """The keys of all distances, for `read`.

        Args:
            key_length: int. `M + T`.

        Returns:
            Tuple of `L` `DistanceKeys`.
        """
        return self._projected.position_keys(key_length)

    def read(self, token_ids, lengths, memory, position_keys=None):
        """Reads the beginnings of segments.

        Args:
            token_ids: int tensor `(B, T)`. What is behind a row's length has no
                influence.
            lengths: int32 tensor `(B,)`, from 0 to `T`: the tokens of each row;
                or a scalar, where all rows have as many.
            memory: `ProjectedMemory` of what came before.
            position_keys: optional result of `position_keys(M + T)`.

        Returns:
            The next `ProjectedMemory`.
        """
        memory_length = memory.keys[0].shape[3]
        segment_length = token_ids.shape[1]
        if position_keys is None:
            position_keys = self.position_keys(memory_length + segment_length)
        mask_scores = self._projected.mask_scores(
            segment_length, memory_length, memory.valid_length
        )
        hidden = self._model.embedding(token_ids)  # [B, T, D]
        keys, values = [], []
        for block, old_keys, old_values, distance_keys in zip(
            self._projected.blocks, memory.keys, memory.values, position_keys, strict=True
        ):
            hidden, all_keys, all_values = block(
                hidden, old_keys, old_values, mask_scores, distance_keys
            )
            keys.append(_last(all_keys, 3, lengths, memory_length))
            values.append(_last(all_values, 2, lengths, memory_length))
        return self._memory_of(keys, values, memory, lengths)

    def initial_recent(self, num_rows, capacity):
        """Room for tokens that are read one at a time.

        Args:
            num_rows: int. `R`.
            capacity: int. `C`.

        Returns:
            A `RecentMemory` of length 0.
        """
        empty = self._projected.initial_memory(num_rows, capacity)
        return RecentMemory(empty.keys, empty.values, ops.zeros((), dtype="int32"))

    def constants(self, num_rows, memory_length):
        """What `step` needs besides; depends on weights and sizes alone.

        Args:
            num_rows: int. `R`, which decides what is fastest.
            memory_length: int. `M`.

        Returns:
            `TokenConstants`.
        """
        kernels = tuple(block.projection_kernel() for block in self._token_blocks)
        return TokenConstants(kernels, self._distances(num_rows, memory_length))

    def _distances(self, num_rows, memory_length):
        if not self._has_sinusoids or num_rows > _MAX_FOLDED_ROWS:
            return self.position_keys(memory_length + 1)
        sinusoids = functional.relative_positional_encoding(
            memory_length + 1,
            self.config.hidden_dim,
            self.config.clamp_length,
            dtype=self._model.compute_dtype,
        )
        projections = tuple(block.folding_projection() for block in self._token_blocks)
        return FoldedDistances(projections, ops.transpose(sinusoids))

    def step(self, token_ids, memory, recent, constants):
        """Reads one token per row.

        Args:
            token_ids: int tensor `(R,)`.
            memory: `ProjectedMemory` of `B` rows; each is of `R / B` rows that
                follow each other.
            recent: `RecentMemory` of `R` rows, of a length below its capacity.
            constants: result of `constants(R, M)`.

        Returns:
            Tuple of the log-probabilities of the next token, float32 `(R, V)`,
            and the next `RecentMemory`.
        """
        memory_length, capacity = memory.keys[0].shape[3], recent.keys[0].shape[3]
        position = recent.length
        mask_scores = self._mask_scores(memory, token_ids.shape[0], capacity, position)
        hidden = self._model.embedding(ops.expand_dims(token_ids, 1))  # [R, 1, D]
        keys, values = [], []
        for index, block in enumerate(self._token_blocks):

            def over_distances(query, index=index):
                scores = _distance_scores(query, constants.distances, index)  # [R, N, 1, M + 1]
                return _by_place(scores, memory_length, capacity, position)

            hidden, (new_keys, new_values) = block(
                hidden,
                (memory.keys[index], memory.values[index]),
                (recent.keys[index], recent.values[index]),
                position,
                mask_scores,
                constants.kernels[index],
                over_distances,
            )
            keys.append(new_keys)
            values.append(new_values)
        log_probs = ops.squeeze(self._model.log_probs_of(hidden), axis=1)
        return log_probs, RecentMemory(tuple(keys), tuple(values), position + 1)

    def append(self, memory, recent, lengths):
        """Takes recent tokens over into memory.

        Args:
            memory: `ProjectedMemory` of `B` rows.
            recent: `RecentMemory` of as many rows.
            lengths: int32 tensor `(B,)`: how many of the recent tokens of each
                row are to be remembered; or a scalar, the same for all rows.

        Returns:
            The next `ProjectedMemory`.
        """
        memory_length = memory.keys[0].shape[3]
        keys = [
            _last(ops.concatenate(pair, axis=3), 3, lengths, memory_length)
            for pair in zip(memory.keys, recent.keys, strict=True)
        ]
        values = [
            _last(ops.concatenate(pair, axis=2), 2, lengths, memory_length)
            for pair in zip(memory.values, recent.values, strict=True)
        ]
        return self._memory_of(keys, values, memory, lengths)

    def _memory_of(self, keys, values, memory, lengths):
        valid_length = ops.minimum(memory.valid_length + lengths, memory.keys[0].shape[3])
        return ProjectedMemory(tuple(keys), tuple(values), valid_length)

    def _mask_scores(self, memory, num_rows, capacity, position):
        """What is added to the scores of all layers, `(R, 1, 1, M)` and `(R, 1, 1, C)`."""
        memory_length = memory.keys[0].shape[3]
        config = self.config
        farthest = memory_length
        if config.same_length and config.same_length_keys == "memory":
            farthest = memory_length - 1
        places = ops.arange(memory_length + capacity, dtype="int32")
        distances = memory_length + position - places
        in_reach = ops.logical_and(distances > 0, distances <= farthest)
        first_filled = memory_length - memory.valid_length
        first_filled = ops.repeat(first_filled, num_rows // memory.valid_length.shape[0], axis=0)
        filled = ops.expand_dims(places, 0) >= ops.expand_dims(first_filled, 1)
        allowed = ops.logical_and(filled, ops.expand_dims(in_reach, 0))
        allowed = ops.reshape(allowed, [num_rows, 1, 1, memory_length + capacity])
        scores = functional.mask_scores(ops.zeros((), self._score_dtype()), allowed)
        return scores[..., :memory_length], scores[..., memory_length:]

    def _score_dtype(self):
        return functional.at_least_float32(ops.zeros((), self._model.compute_dtype)).dtype


def _distance_scores(query, distances, index):
    """Scores `(R, N, 1, M + 1)` of queries `(R, N, 1, H)`; column `j` is of distance `M - j`."""
    heads_first = ops.transpose(ops.squeeze(query, axis=2), [1, 0, 2])  # [N, R, H]
    if isinstance(distances, FoldedDistances):
        folded = ops.matmul(heads_first, distances.projections[index])  # [N, R, D]
        num_heads, num_rows, width = folded.shape
        scores = ops.matmul(ops.reshape(folded, [-1, width]), distances.sinusoids)
        scores = ops.reshape(scores, [num_heads, num_rows, scores.shape[-1]])
    else:
        scores = ops.matmul(heads_first, distances[index].keys)
        if distances[index].scores is not None:
            scores = scores + distances[index].scores
        scores = scores[..., 1:]  # column 0 is of no distance
    return ops.expand_dims(ops.transpose(scores, [1, 0, 2]), axis=2)


def _by_place(scores, memory_length, capacity, position):
    """Scores `(R, N, 1, M + 1)` by distance, put where the keys are.

    Returns:
        Tuple of scores of memory, of the recent tokens, of which only those
        before `position` count, and of the token itself.
    """
    padded = ops.pad(scores, [[0, 0], [0, 0], [0, 0], [capacity, capacity - 1]])
    start = capacity - position
    rows_and_heads = [*scores.shape[:2], 1]
    of_memory = ops.slice(padded, [0, 0, 0, start], [*rows_and_heads, memory_length])
    of_recent = ops.slice(padded, [0, 0, 0, start + memory_length], [*rows_and_heads, capacity])
    return of_memory, of_recent, scores[..., -1:]


def _last(tensor, axis, lengths, memory_length):
    """The `M` places of each row that end where its text does.

    Args:
        tensor: float tensor; memory, and what comes after it, along `axis`.
        axis: int.
        lengths: int32 tensor `(B,)` or `()`. Places behind memory to be kept.
        memory_length: int. `M`.

    Returns:
        Float tensor, `M` long along `axis`.
    """
    if len(lengths.shape) == 0 or tensor.shape[0] == 1:
        starts = [0] * len(tensor.shape)
        starts[axis] = ops.reshape(lengths, [])
        shape = list(tensor.shape)
        shape[axis] = memory_length
        return ops.slice(tensor, starts, shape)
    places = ops.expand_dims(lengths, 1) + ops.arange(memory_length, dtype="int32")  # [B, M]
    shape = [1] * len(tensor.shape)
    shape[0], shape[axis] = tensor.shape[0], memory_length
    return ops.take_along_axis(tensor, ops.reshape(places, shape), axis=axis)
