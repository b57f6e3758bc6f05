"""All layers of a Transformer-XL over keys and values, token by token.

Shape letters used in this module:
  B rows of memory, R rows, M memory length, C capacity for recent tokens,
  D hidden width, N heads, H head width, V vocabulary, L layers.
"""

from keras import ops

from txl_tf import functional
from txl_tf.inference.blocks import TokenBlock
from txl_tf.inference.memory import FoldedDistances, KeyValueMemory, RecentTokens, StepConstants

# Folding reads less and computes more; with more rows than this it costs more.
_MAX_FOLDED_ROWS = 2


class TokenModel:
    """Reads one token per row; memory stays, and new tokens are kept beside it.

    The numbers are those of the model that reads one token at a time with a
    `Memory` of `M`.

    Args:
        relative: `RelativeModel` whose keys are `(B, N, H, M)`.
    """

    def __init__(self, relative):
        self.config = relative.config
        self._relative = relative
        self._model = relative.model
        self._blocks = [TokenBlock(block, relative.biases) for block in relative.model.blocks]

    def initial_recent(self, num_rows, capacity):
        """Creates the empty buffer of recent tokens.

        Args:
            num_rows: int. `R`.
            capacity: int. `C`.

        Returns:
            A `RecentTokens` of length 0.
        """
        empty = self._relative.initial_memory(num_rows, capacity)
        return RecentTokens(empty.keys, empty.values, ops.zeros((), dtype="int32"))

    def constants(self, num_rows, memory_length):
        """Tensors for `step`, of weights and sizes alone.

        Args:
            num_rows: int. `R`, which decides what is fastest.
            memory_length: int. `M`.

        Returns:
            `StepConstants`.
        """
        kernels = tuple(block.projection_kernel() for block in self._blocks)
        return StepConstants(kernels, self._distances(num_rows, memory_length))

    def _distances(self, num_rows, memory_length):
        has_sinusoids = self.config.position_encoding == "transformer_xl"
        if not has_sinusoids or num_rows > _MAX_FOLDED_ROWS:
            return self._relative.position_keys(memory_length + 1)
        sinusoids = self._model.positions.sinusoids(
            memory_length + 1, self.config.hidden_dim, self._model.compute_dtype
        )
        projections = tuple(block.folding_projection() for block in self._blocks)
        return FoldedDistances(projections, ops.transpose(sinusoids))

    def step(self, token_ids, memory, recent, constants):
        """Reads one token per row.

        Args:
            token_ids: int tensor `(R,)`.
            memory: `KeyValueMemory` of `B` rows; each is of `R / B` rows that
                follow each other.
            recent: `RecentTokens` of `R` rows, of a length below its capacity.
            constants: result of `constants(R, M)`.

        Returns:
            Tuple of the log-probabilities of the next token, float32 `(R, V)`,
            and the next `RecentTokens`.
        """
        memory_length, capacity = memory.memory_length, recent.keys[0].shape[3]
        position = recent.length
        mask_scores = self._mask_scores(memory, token_ids.shape[0], capacity, position)
        hidden = self._model.embedding(ops.expand_dims(token_ids, 1))  # [R, 1, D]
        keys, values = [], []
        for index, block in enumerate(self._blocks):

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
        return log_probs, RecentTokens(tuple(keys), tuple(values), position + 1)

    def append(self, memory, recent, lengths):
        """Takes recent tokens over into memory.

        Args:
            memory: `KeyValueMemory` of `B` rows.
            recent: `RecentTokens` of as many rows.
            lengths: int32 tensor `(B,)`: how many of the recent tokens of each
                row are to be remembered; or a scalar, the same for all rows.

        Returns:
            The next `KeyValueMemory`.
        """
        memory_length = memory.memory_length
        keys, values = (
            tuple(
                functional.last_positions(
                    ops.concatenate(pair, axis=axis), axis, lengths, memory_length
                )
                for pair in zip(old, new, strict=True)
            )
            for axis, old, new in ((3, memory.keys, recent.keys), (2, memory.values, recent.values))
        )
        valid_length = functional.next_valid_length(memory.valid_length, memory_length, lengths)
        return KeyValueMemory(keys, values, valid_length)

    def _mask_scores(self, memory, num_rows, capacity, position):
        """Masks as scores for all layers, `(R, 1, 1, M)` and `(R, 1, 1, C)`."""
        memory_length = memory.memory_length
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
    """Reorders scores `(R, N, 1, M + 1)` from distances to key positions.

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
