"""All layers of a Transformer-XL over keys and values, for segments and single tokens.

Shape letters used in this module:
  B rows of memory, R rows, T segment length, M memory length, K = M + T key
  length, C tokens that attend together or capacity for recent tokens, D hidden
  width, N heads, H head width, V vocabulary, L layers.
"""

import functools
from typing import Any, NamedTuple

import keras
from keras import ops

from txl_tf import functional
from txl_tf.config.model import RELATIVE_ENCODINGS
from txl_tf.inference.blocks import (
    BatchedBlock,
    OnChipBlock,
    PerHeadBlock,
    StackedTokenBlock,
    TokenBlock,
    distance_keys,
    in_pairs,
    product_in_halves,
    written,
)
from txl_tf.layers.attention import VisibleKeys
from txl_tf.models.memory import KeyValueMemory, Memory

# Folding reads less and computes more, and costs more above this number of rows.
_MAX_FOLDED_ROWS = 2
_BLOCKS = {"batched": BatchedBlock, "per_head": PerHeadBlock, "on_chip": OnChipBlock}


class FoldedDistances(NamedTuple):
    """Position projections applied to the query, which is cheaper for one or two rows.

    The product of a query with the projected sinusoids equals the product of the projected query
    with the sinusoids. For one row that reads one table for all layers instead of the keys of all
    distances of each. The projection is `(N, H, D)`; column `j` of the sinusoids `(D, M + 1)`
    belongs to the distance `M - j`.
    """

    projection: Any
    sinusoids: Any


class RelativeModel:
    """Inference view of a `TransformerXL` with fixed weights and a key-value memory.

    A `Memory` holds hidden states, and every segment projects all of them to keys and values
    again, and all position encodings too. With fixed weights these never change, so here memory
    holds keys and values, and the keys of all distances are computed once per length. The results
    equal those with a `Memory` of the same length. Positions must be relative (ValueError):
    absolute ones are part of the projected inputs and move with every segment.

    A call reads token ids `(B, T)`, several segments at once with the results of one after the
    other: large products take less time per token. Arguments and results are those of
    `InferenceEngine.hidden_states`.

    `step` reads one token per row, beside a memory that stays: moving all of memory by one place
    for every token would cost more than all arithmetic on it. The `recent` tokens are a
    `KeyValueMemory` of their own with `C` places, which fills from the left; its valid length is a
    scalar, the same for all rows. They move to memory together. If the plan stacks layers, the
    recent tokens and the memory of steps are one tensor of all layers.
    """

    def __init__(self, model, plan, memory_length):
        config = model.config
        if not config.has_relative_positions:
            raise ValueError(
                "Only memory without positions can be kept as keys and values: "
                f"`position_encoding` must be one of {', '.join(RELATIVE_ENCODINGS)}. "
                f"Received: position_encoding={getattr(config, 'position_encoding', None)!r}"
            )
        self.config = config
        self.model = model
        self._plan = plan
        self.memory_length = memory_length
        self.num_places = plan.num_places(memory_length)
        self.biases = {}
        if config.share_attention_biases:
            self.biases = {"content_bias": model.content_bias, "position_bias": model.position_bias}
        self.blocks = [_BLOCKS[plan.kernel](block, self.biases) for block in model.blocks]
        if plan.stacks_layers:
            create = StackedTokenBlock
        else:
            product = product_in_halves if plan.splits_products else ops.matmul
            create = functools.partial(TokenBlock, product=product)
        self._token_blocks = [create(block, self.biases) for block in model.blocks]
        self._stored = in_pairs if plan.rounds_steps else lambda tensor, axis: tensor

    def initial_memory(self, num_rows, num_places=None):
        """Returns the `KeyValueMemory` of `B` rows that have read nothing."""
        config = self.config
        num_places = self.num_places if num_places is None else num_places
        shape = (num_rows, num_places, config.num_heads, config.head_dim)
        dtype = self.model.compute_dtype
        empty = [
            block.arranged(ops.zeros(shape, dtype), ops.zeros(shape, dtype))
            for block in self.blocks
        ]
        return KeyValueMemory(*zip(*empty, strict=True), ops.zeros((num_rows,), "int32"))

    def adopt(self, memory):
        """Projects a `Memory`, or checks a `KeyValueMemory` of another engine."""
        if isinstance(memory, Memory):
            unused = [[0, 0], [self.num_places - self.memory_length, 0], [0, 0]]
            pairs = zip(self.blocks, memory.states, strict=True)
            projected = [block.project(ops.pad(state, unused)) for block, state in pairs]
            memory = KeyValueMemory(*zip(*projected, strict=True), memory.valid_length)
        if not isinstance(memory, KeyValueMemory):
            raise ValueError(
                "`memory` must be a `Memory` or a `KeyValueMemory`. "
                f"Received: memory of type {type(memory).__name__}"
            )
        if (len(memory.keys[0].shape) == 3) != (self._plan.kernel == "on_chip"):
            raise ValueError(
                "Memory of the kernel for TPUs stays with engines that have it, as it does not "
                "say how many of its places are for use. "
                f"Received: keys of shape {tuple(memory.keys[0].shape)}"
            )
        if memory.memory_length != self.num_places:
            raise ValueError(
                f"`memory` must be of length {self.num_places}. "
                f"Received: a memory of length {memory.memory_length}"
            )
        # An engine with a longer memory may have filled more positions.
        valid_length = ops.minimum(memory.valid_length, self.memory_length)
        return memory._replace(valid_length=valid_length)

    def position_keys(self, key_length):
        """Returns the `distance_keys` of all layers, of `K` distances."""
        encoding = self.sinusoids(key_length)
        return tuple(
            distance_keys(block.attention, key_length, encoding) for block in self.model.blocks
        )

    def sinusoids(self, key_length):
        return self.model.positions.sinusoids(
            key_length, self.config.hidden_dim, self.model.compute_dtype
        )

    def position_keys_of_read(self, num_tokens, segment_length):
        """Returns the `distances` of all blocks, for reading `T` tokens at once."""
        if self._plan.kernel != "on_chip":
            together = self.tokens_together(num_tokens, segment_length)
            return self.position_keys(self.memory_length + together)
        kernel = self._plan.attention_kernel
        plan = self.blocks[0].plan_of_table(kernel, num_tokens, self.num_places)
        encoding = self.sinusoids(plan.padded_key_length)
        return tuple(block.distance_table(plan, encoding) for block in self.blocks)

    def tokens_together(self, num_tokens, segment_length):
        """Returns how many of `T` tokens attend together, which sets the number of distances."""
        together = self._plan.tokens_together
        if together is None:
            return num_tokens
        num_segments = max(1, together // segment_length)
        return min(num_tokens, num_segments * segment_length)

    def __call__(self, token_ids, memory, lengths, document_starts, position_keys, segment_length):
        num_tokens = ops.shape(token_ids)[1]
        hidden = self.model.embed(token_ids)  # [B, T, D]
        hidden_states = [hidden]
        masks = self._masks(num_tokens, memory, segment_length, document_starts)
        remembered = []
        for block, keys, values, distances in zip(
            self.blocks, memory.keys, memory.values, position_keys, strict=True
        ):
            hidden, *keys_and_values = block(hidden, keys, values, masks, distances, lengths)
            hidden_states.append(hidden)
            remembered.append(keys_and_values)
        num_read = num_tokens if lengths is None else lengths
        valid_length = functional.next_valid_length(
            memory.valid_length, self.memory_length, num_read, document_starts
        )
        return hidden_states, KeyValueMemory(*zip(*remembered, strict=True), valid_length)

    def _masks(self, num_tokens, memory, segment_length, document_starts):
        """Returns the argument `mask_scores` of the blocks."""
        memory_length, valid_length = self.memory_length, memory.valid_length
        if self._plan.kernel == "on_chip":
            return VisibleKeys(
                self._plan.attention_kernel,
                self.num_places,
                valid_length,
                self.model.positions.farthest(memory_length),
                document_starts,
                segment_length,
                num_unused=self.num_places - memory_length,
            )
        same_document = None
        if document_starts is not None:
            same_document = functional.same_document_mask(document_starts, memory_length)
        if self._plan.kernel != "per_head":
            return self.mask_scores(num_tokens, valid_length, segment_length, same_document)
        together = self.tokens_together(num_tokens, segment_length)
        masks = []
        for start in range(0, num_tokens, together):
            stop = min(start + together, num_tokens)
            filled = ops.minimum(valid_length + start, memory_length)
            of_part = None
            if same_document is not None:
                of_part = same_document[:, :, start:stop, start : memory_length + stop]
            scores = self.mask_scores(stop - start, filled, segment_length, of_part)
            masks.append(ops.squeeze(scores, axis=1))  # [B, C, M + C + 1]
        return tuple(masks)

    def mask_scores(self, num_tokens, valid_length, segment_length, same_document):
        """Returns scores over distances, `(B, 1, T, K + 1)`: 0 where attention is allowed."""
        allowed = self.model.positions.mask(num_tokens, self.memory_length, valid_length)
        if segment_length != num_tokens:
            own_segment = _own_segment_mask(num_tokens, self.memory_length, segment_length)
            allowed = ops.logical_and(allowed, own_segment)
        if same_document is not None:
            allowed = ops.logical_and(allowed, same_document)
        scores = functional.mask_scores(ops.zeros((), self.model.compute_dtype), allowed)
        return functional.unshift_padded(scores)

    def initial_recent(self, num_rows, capacity):
        """Returns the empty recent tokens of `R` rows, with room for `C`."""
        keys, values, _ = self.initial_memory(num_rows, capacity)
        if self._plan.stacks_layers:
            keys, values = ops.stack(keys), ops.stack(values)
        return KeyValueMemory(keys, values, ops.zeros((), dtype="int32"))

    def step_constants(self, num_rows, memory_length):
        """Computes what depends only on weights and sizes, for steps of `R` rows.

        Returns the `kernels` and the `FoldedDistances` or `distance_keys` of all layers. If the
        plan stacks layers, kernels and keys are stacked, and a third part holds the `variables`.
        """
        kernels = tuple(block.kernels() for block in self._token_blocks)
        if self._plan.stacks_layers:
            kernels = [tuple(self._stored(each, 0) for each in block) for block in kernels]
            distances = [
                (self._stored(ops.swapaxes(keys, 1, 2), -1), added)
                for keys, added in self.position_keys(memory_length + 1)
            ]
            variables = [[each.value for each in block.variables()] for block in self._token_blocks]
            return _stacked(list(zip(kernels, distances, variables, strict=True)))
        has_sinusoids = self.config.position_encoding == "transformer_xl"
        if not has_sinusoids or num_rows > _MAX_FOLDED_ROWS:
            return kernels, self.position_keys(memory_length + 1)
        sinusoids = ops.transpose(self.sinusoids(memory_length + 1))
        return kernels, tuple(
            FoldedDistances(block.folding_projection(), sinusoids) for block in self._token_blocks
        )

    def memory_of_steps(self, memory):
        """Returns memory as `step` reads it, stacked and rounded as in the plan."""
        if not self._plan.stacks_layers:
            return memory
        keys = ops.stack([self._stored(ops.swapaxes(k, 2, 3), -1) for k in memory.keys])
        return memory._replace(
            keys=keys, values=ops.stack([self._stored(v, -2) for v in memory.values])
        )

    def step(self, token_ids, memory, recent, constants):
        """Reads one token per row; `R / B` consecutive rows share a row of memory.

        `memory` is from `memory_of_steps`, and `recent` must have room for one more token.
        Returns the float32 log-probabilities `(R, V)` of the next token and the next recent
        tokens.
        """
        position, capacity = recent.valid_length, recent.keys[0].shape[3]
        memory_length = memory.keys[0].shape[2 if self._plan.stacks_layers else 3]
        shape = token_ids.shape[0], memory_length, capacity
        mask_scores = self._mask_scores(memory.valid_length, *shape, position)

        def read(block, hidden, memory, recent, kernels, distances):
            def over_distances(query):
                scores = _distance_scores(block, query, distances)  # [R, N, 1, M + 1]
                return _by_place(scores, memory_length, capacity, position)

            return block(hidden, memory, recent, position, mask_scores, kernels, over_distances)

        hidden = self.model.embedding(ops.expand_dims(token_ids, 1))  # [R, 1, D]
        if self._plan.stacks_layers:
            hidden, keys, values = self._read_stacked(read, hidden, memory, recent, constants)
        else:
            kept = []
            memories = zip(*memory[:2], strict=True), zip(*recent[:2], strict=True)
            for block, *of_layer in zip(self._token_blocks, *memories, *constants, strict=True):
                hidden, new = read(block, hidden, *of_layer)
                kept.append(new)
            keys, values = zip(*kept, strict=True)
        log_probs = ops.squeeze(self.model.log_probs_of(hidden), axis=1)
        return log_probs, KeyValueMemory(keys, values, position + 1)

    def _read_stacked(self, read, hidden, memory, recent, constants):
        """Reads a token by a loop over stacked layers, which compiles in a tenth of the time.

        Every layer computes with the first block and its own weights.
        """
        block, num_layers = self._token_blocks[0], len(self._token_blocks)
        shared = [(each, each.value) for each in self.biases.values()]

        def body(layer, hidden, *kept):
            tensors = (memory[:2], recent[:2], *constants)
            *memories, kernels, distances, values = keras.tree.map_structure(
                lambda each: None if each is None else _at(each, layer), tensors
            )
            own = list(zip(block.variables(), values, strict=True))
            with keras.StatelessScope(shared + own):
                hidden, new = read(block, hidden, *memories, kernels, distances)
            pairs = zip(kept, new, strict=True)
            kept = [ops.slice_update(all_, [layer, 0, 0, 0, 0], one[None]) for all_, one in pairs]
            return layer + 1, hidden, *kept

        empty = ops.zeros_like(recent.values[..., :1, :])  # [L, R, N, 1, H]
        first = ops.convert_to_tensor(0, "int32")
        state = first, hidden, empty, empty
        _, hidden, *new = ops.while_loop(lambda layer, *_: layer < num_layers, body, state)
        return hidden, *written(recent[:2], recent.valid_length, *new)

    def merge_recent(self, memory, recent, lengths):
        """Moves recent tokens into memory, see `InferenceEngine.finish`."""
        memory_length = self.memory_length
        if self._plan.stacks_layers:
            recent = recent._replace(
                keys=ops.unstack(recent.keys), values=ops.unstack(recent.values)
            )
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

    def _mask_scores(self, valid_length, num_rows, memory_length, capacity, position):
        """Returns masks as scores for all layers, `(R, 1, 1, M)` and `(R, 1, 1, C)`."""
        reach = self.memory_length
        farthest = self.model.positions.farthest(reach)
        farthest = reach if farthest is None else farthest
        places = ops.arange(memory_length + capacity, dtype="int32")
        distances = memory_length + position - places
        nearest = 1 if memory_length > 0 else 0  # a token in place is one of its own keys
        in_reach = ops.logical_and(distances >= nearest, distances <= farthest)
        first_filled = reach - valid_length
        first_filled = ops.repeat(first_filled, num_rows // valid_length.shape[0], axis=0)
        filled = ops.expand_dims(places, 0) >= ops.expand_dims(first_filled, 1)
        allowed = ops.logical_and(filled, ops.expand_dims(in_reach, 0))
        allowed = ops.reshape(allowed, [num_rows, 1, 1, memory_length + capacity])
        zero = functional.at_least_float32(ops.zeros((), self.model.compute_dtype))
        scores = functional.mask_scores(zero, allowed)
        return scores[..., :memory_length], scores[..., memory_length:]


def _own_segment_mask(num_tokens, memory_length, segment_length):
    """Returns the mask of each segment's memory, where several segments are read at once.

    Read one after the other, a segment forgets all tokens before its memory. Read together, each
    begins its memory at the same place.
    """
    queries = ops.arange(num_tokens, dtype="int32")
    first_key = queries // segment_length * segment_length
    keys = ops.arange(memory_length + num_tokens, dtype="int32")
    allowed = ops.expand_dims(keys, 0) >= ops.expand_dims(first_key, 1)  # [T, K]
    return ops.expand_dims(allowed, (0, 1))


def _stacked(layers):
    """Stacks the tensors of equal structures; `None` stays."""
    return keras.tree.map_structure(
        lambda *each: None if each[0] is None else ops.stack(each), *layers
    )


def _at(stacked, layer):
    """Returns one of stacked tensors; XLA slices where it reads, and a gather would copy."""
    shape = [1, *stacked.shape[1:]]
    return ops.reshape(ops.slice(stacked, [layer] + [0] * (len(shape) - 1), shape), shape[1:])


def _distance_scores(block, query, distances):
    """Scores queries `(R, N, 1, H)`: `(R, N, 1, M + 1)`, column `j` for the distance `M - j`."""
    heads_first = ops.transpose(ops.squeeze(query, axis=2), [1, 0, 2])  # [N, R, H]
    if isinstance(distances, FoldedDistances):
        folded = ops.matmul(heads_first, distances.projection)  # [N, R, D]
        num_heads, num_rows, width = folded.shape
        scores = ops.matmul(ops.reshape(folded, [-1, width]), distances.sinusoids)
        scores = ops.reshape(scores, [num_heads, num_rows, scores.shape[-1]])
    else:
        keys, added = distances
        scores = block.scores(heads_first, keys)
        if added is not None:
            scores = scores + added
        scores = scores[..., 1:]  # column 0 belongs to no distance
    return ops.expand_dims(ops.transpose(scores, [1, 0, 2]), axis=2)


def _by_place(scores, memory_length, capacity, position):
    """Reorders scores `(R, N, 1, D)` from distances `D - 1` to 0 to key positions.

    Returns scores of memory, of the recent tokens, valid only up to `position`, and of the token
    itself.
    """
    num_places = memory_length + capacity
    padding = [num_places + 1 - scores.shape[-1], capacity - 1]
    padded = ops.pad(scores, [[0, 0], [0, 0], [0, 0], padding])
    shape = [*scores.shape[:2], 1, num_places]
    by_place = ops.slice(padded, [0, 0, 0, capacity - position], shape)
    return by_place[..., :memory_length], by_place[..., memory_length:], scores[..., -1:]
