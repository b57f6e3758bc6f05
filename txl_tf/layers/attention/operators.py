"""Ways to compute the attention of a layer, one operator for each kind of device.

An operator knows how memory lies on its kind of device. `bind` fixes the keys that are visible in
one call of a model; all layers of the model then share the result.

Shape letters used in this module:
  B rows of memory, W rows that share one of them, R = B * W rows, T tokens, M memory length,
  K = M + T key length, C tokens of a part of the segment or capacity for recent tokens, N heads,
  H head width.
"""

import dataclasses
import functools
import itertools
from typing import Any, Protocol

from keras import ops

from txl_tf import functional
from txl_tf.layers.attention.projections import KeysAndValues, Projections
from txl_tf.layers.visible_keys import VisibleKeys, mask_of_first_keys


class Attend(Protocol):
    """Function that computes the attention of any layer to the keys that were bound."""

    def __call__(
        self, layer: Any, projections: Projections, dropout_seed: Any = None, training: bool = False
    ) -> tuple[Any, Any]:
        """Returns the attended values `(B, T, N * H)`, and what memory keeps next.

        The second result has a meaning only if the projections have `kept`.
        """


class AttentionOperator(Protocol):
    """Way to compute the attention of a layer, for one kind of device."""

    def num_places(self, memory_length: int) -> int:
        """Returns the places of a memory that remembers `memory_length` tokens."""

    def part_tokens(self, num_tokens: int, segment_length: int) -> int:
        """Returns how many of `T` tokens attend together, which sets the number of distances."""

    def arranged(self, keys: Any, values: Any) -> Any:
        """Arranges keys and values `(B, M, N, H)` as memory holds them."""

    def bind(self, visible: VisibleKeys, dtype: Any) -> Attend:
        """Returns the function that attends to the visible keys, in a compute dtype."""


@dataclasses.dataclass(frozen=True)
class AllHeads(AttentionOperator):
    """Operator that computes all rows and heads in one product."""

    def num_places(self, memory_length: int) -> int:
        return memory_length

    def part_tokens(self, num_tokens: int, segment_length: int) -> int:
        return num_tokens

    def arranged(self, keys: Any, values: Any) -> KeysAndValues:
        return KeysAndValues(ops.transpose(keys, [0, 2, 3, 1]), ops.transpose(values, [0, 2, 1, 3]))

    def bind(self, visible: VisibleKeys, dtype: Any) -> Attend:
        mask = visible.mask_over_distances(dtype)

        def attend(layer, projections, dropout_seed=None, training=False):
            attended, together = layer.attend_all_heads(projections, mask, dropout_seed, training)
            return attended, None if projections.kept is None else remembered(together, visible)

        return attend


def remembered(together: KeysAndValues, visible: VisibleKeys) -> KeysAndValues:
    """Returns the last places of the keys and values of memory and segment."""
    return KeysAndValues(
        functional.last_positions(together.keys, 3, visible.lengths, visible.num_places),
        functional.last_positions(together.values, 2, visible.lengths, visible.num_places),
    )


@dataclasses.dataclass(frozen=True)
class HeadByHead(AllHeads):
    """Operator that computes one head of one row after the other, without dropout.

    The scores of one head and a part of the segment fit in a cache, and their
    `functional.relative_shift` is a view. A part attends only as far back as its memory. The
    program grows with the number of heads and rows, so it suits neither compilers nor many rows.

    Attributes:
        tokens_together: int. Tokens of a part, rounded down to whole segments, but at least one
            segment. The scores of 256 queries of a head fit in a cache, and their products are
            large enough to be fast.
    """

    tokens_together: int = 256

    def part_tokens(self, num_tokens: int, segment_length: int) -> int:
        num_segments = max(1, self.tokens_together // segment_length)
        return min(num_tokens, num_segments * segment_length)

    def bind(self, visible: VisibleKeys, dtype: Any) -> Attend:
        part_length = self.part_tokens(visible.num_tokens, visible.segment_length)
        first_keys = visible.first_keys()
        first_keys = ops.broadcast_to(first_keys, [first_keys.shape[0], visible.num_tokens])
        masks = []
        for start in range(0, visible.num_tokens, part_length):
            length = min(part_length, visible.num_tokens - start)
            # The indices of keys count from the first key of this part.
            first = ops.maximum(first_keys[:, start : start + length] - start, 0)
            key_length = visible.num_places + length  # M + C
            masks.append(mask_of_first_keys(first, length, key_length, dtype))

        def attend(layer, projections, dropout_seed=None, training=False):
            attended, together = _attend_by_head(layer, projections, masks)
            return attended, remembered(together, visible)

        return attend


def _attend_by_head(layer, projections, masks):
    num_heads, num_tokens = layer.num_heads, projections.query.shape[1]
    content_queries, distance_queries = (
        _matrices(ops.transpose(each, [0, 2, 1, 3])) for each in layer.queries(projections)
    )
    together = layer.keys_and_values(projections)
    keys, values = _matrices(together.keys), _matrices(together.values)
    memory_length = values[0].shape[0] - num_tokens
    distances = ops.unstack(projections.distances.keys, axis=0)
    distance_scores = projections.distances.scores
    masks_by_row = [ops.unstack(mask, axis=0) for mask in masks]
    starts = itertools.accumulate((mask.shape[1] for mask in masks[:-1]), initial=0)
    parts = list(zip(starts, masks_by_row, strict=True))

    def attend(index, start, masks_of_rows):
        """Returns the result `(C, H)` of one head of one row for the tokens of a part."""
        row, head = divmod(index, num_heads)
        mask = masks_of_rows[row if len(masks_of_rows) > 1 else 0]
        length, width = mask.shape
        tokens = slice(start, start + length)
        columns = slice(start, start + memory_length + length)
        # The nearest distances are in the last columns; a part needs no farther ones.
        scores = ops.matmul(distance_queries[index][tokens], distances[head][:, -width:]) + mask
        if distance_scores is not None:
            scores = scores + distance_scores[head, :, -width:]
        contents = ops.matmul(content_queries[index][tokens], keys[index][:, columns])
        scores = functional.at_least_float32(contents + _shifted(scores))  # [C, M + C]
        probabilities = ops.cast(functional.softmax_over_keys(scores), values[index].dtype)
        return ops.matmul(probabilities, values[index][columns])

    attended = [
        ops.concatenate([attend(index, *part) for part in parts], axis=0)
        for index in range(len(keys))
    ]  # [T, H] each
    rows = [
        ops.concatenate(attended[first : first + num_heads], axis=-1)
        for first in range(0, len(attended), num_heads)
    ]
    return ops.stack(rows), together  # [B, T, N * H]


def _matrices(tensor):
    """Splits `(B, N, ...)` into its `B * N` matrices, without a copy."""
    return ops.unstack(ops.reshape(tensor, [-1, *tensor.shape[2:]]), axis=0)


def _shifted(scores):
    """Applies `functional.shift_padded` to one head: `(T, K + 1)` to `(T, K)`."""
    num_tokens, width = scores.shape
    read_in_order = ops.reshape(scores, [num_tokens * width])
    return ops.reshape(read_in_order[num_tokens:], [num_tokens, width - 1])


@dataclasses.dataclass(frozen=True, eq=False)
class OneToken(AllHeads):
    """Operator for one token per row, which only reads memory.

    Moving memory by one place for every token would cost more than all arithmetic on it: with
    `N * H` = 512 and M = 1,600, keys and values of a row in one layer have 6.6 MB in float32, and a
    token adds 4 KB. So new keys and values are written at `position` into `C` places for recent
    tokens, beside memory. The `kept` of the projections are both `KeysAndValues`: of memory, whose
    rows several rows may share, such as the beams of one text, and of the recent tokens, which are
    returned.

    If `num_places_read` is 0, the tokens of memory are already in place among the recent ones, and
    a token is written before it attends. Then one softmax over one tensor suffices, in half as many
    kernels on a GPU.

    Attributes:
        position: int32 number. Recent tokens before this one, and the place that it is written to.
        num_places_read: int. Places of memory, 0 or `M`.
        capacity: int. Places for recent tokens, `C`.
        num_rows: int. Rows that read, `R`.
    """

    position: Any
    num_places_read: int
    capacity: int
    num_rows: int

    def bind(self, visible: VisibleKeys, dtype: Any) -> Attend:
        num_places, reach = self.num_places_read, visible.memory_length
        farthest = reach if visible.farthest is None else visible.farthest
        # Places of memory come first, then those of recent tokens. The token's own place is
        # M + `position`; later ones are empty, and have distances below 0.
        places = ops.arange(num_places + self.capacity, dtype="int32")
        distances = num_places + self.position - places
        nearest = 1 if num_places > 0 else 0  # a token in place is also its own key
        in_reach = ops.logical_and(distances >= nearest, distances <= farthest)
        first_filled = reach - visible.valid_length  # memory is filled from its end
        repeats = self.num_rows // visible.valid_length.shape[0]
        first_filled = ops.repeat(first_filled, repeats, axis=0)
        is_filled = ops.expand_dims(places, 0) >= ops.expand_dims(first_filled, 1)
        is_visible = ops.logical_and(is_filled, ops.expand_dims(in_reach, 0))
        is_visible = ops.reshape(is_visible, [self.num_rows, 1, 1, num_places + self.capacity])
        zero = functional.at_least_float32(ops.zeros((), dtype))
        scores = functional.mask_scores(zero, is_visible)
        masks = scores[..., :num_places], scores[..., num_places:]  # [R, 1, 1, M], [R, 1, 1, C]
        return functools.partial(self._attend, *masks)

    def _attend(
        self, memory_mask, recent_mask, layer, projections, dropout_seed=None, training=False
    ):
        # Numbers of one token have the same order as `(R, 1, N, H)` and as `(R, N, 1, H)`.
        shape = [-1, layer.num_heads, 1, layer.head_dim]
        content_query, distance_query = (
            ops.reshape(each, shape) for each in layer.queries(projections)
        )
        key = ops.reshape(projections.key, shape)
        value = ops.reshape(projections.value, shape)
        memory, recent = projections.kept
        is_in_place = self.num_places_read == 0
        if is_in_place:
            recent = self._written(recent, key, value)
        scores = self._scores_of_distances(distance_query, projections.distances)
        scores = scores[..., 1:]  # column 0 belongs to no distance
        scores = ops.expand_dims(ops.transpose(scores, [1, 0, 2]), axis=2)  # [R, N, 1, M + 1]
        # The scores of M, C and 1 keys are three tensors, because no tensor holds all keys.
        memory_scores, recent_scores, own_score = self._by_place(scores)
        recent_scores = recent_scores + ops.matmul(content_query, recent.keys)
        scores = [functional.at_least_float32(recent_scores) + recent_mask]
        if not is_in_place:
            own_score = own_score + ops.sum(content_query * key, axis=-1, keepdims=True)
            scores.append(functional.at_least_float32(own_score))
            memory_scores = memory_scores + self._product_of_memory(content_query, memory.keys)
            scores.append(functional.at_least_float32(memory_scores) + memory_mask)
        weights, total = unnormalized_softmax(scores)
        weights = [ops.cast(each, value.dtype) for each in weights]
        attended = ops.matmul(weights[0], recent.values)  # [R, N, 1, H]
        if not is_in_place:
            memory_values = self._product_of_memory(weights[2], memory.values)
            attended = attended + weights[1] * value + memory_values
            # The write follows all reads, so that no compiler for CPUs copies the places for them.
            recent = self._written(recent, key, value)
        # The division is last, because the result has fewer numbers than the weights.
        attended = ops.cast(functional.at_least_float32(attended) / total, value.dtype)
        return ops.reshape(attended, [self.num_rows, 1, layer.num_heads * layer.head_dim]), recent

    def _scores_of_distances(self, query, distances):
        """Scores queries `(R, N, 1, H)`: `(N, R, M + 2)`, column `1 + j` for distance `M - j`."""
        heads_first = ops.transpose(ops.squeeze(query, axis=2), [1, 0, 2])  # [N, R, H]
        scores = ops.matmul(heads_first, distances.keys)
        return scores if distances.scores is None else scores + distances.scores

    def _product_of_memory(self, rows, memory):
        """Multiplies rows `(R, N, 1, X)` with memory `(B, N, X, Y)`: `(R, N, 1, Y)`."""
        rows_per_memory = rows.shape[0] // memory.shape[0]
        if rows_per_memory == 1:
            return ops.matmul(rows, memory)
        # The W rows that share a memory become the rows of one matrix. So memory is read once for
        # all W rows.
        _, num_heads, _, width = rows.shape
        groups = ops.reshape(rows, [-1, rows_per_memory, num_heads, width])  # [B, W, N, X]
        products = ops.matmul(ops.transpose(groups, [0, 2, 1, 3]), memory)  # [B, N, W, Y]
        products = ops.transpose(products, [0, 2, 1, 3])
        return ops.reshape(products, [-1, num_heads, 1, products.shape[-1]])

    def _written(self, recent, key, value):
        return written(recent, self.position, key, value)

    def _by_place(self, scores):
        """Reorders scores `(R, N, 1, M + 1)` from distances `M` to 0 to key positions.

        Returns scores of memory, of the recent tokens, valid only up to `position`, and of the
        token itself. Place `i` has the distance `M + position - i`, so all scores move to the right
        by `position`. For M = 3, C = 2 and `position` 1, with `-` for a place that is masked:

            distances   3 2 1 0
            places      - 3 2 1 0

        A slice of padded scores does this without a gather.
        """
        num_places = self.num_places_read + self.capacity
        padding = [num_places + 1 - scores.shape[-1], self.capacity - 1]
        padded = ops.pad(scores, [[0, 0], [0, 0], [0, 0], padding])
        shape = [*scores.shape[:2], 1, num_places]
        by_place = ops.slice(padded, [0, 0, 0, self.capacity - self.position], shape)
        memory_scores = by_place[..., : self.num_places_read]
        return memory_scores, by_place[..., self.num_places_read :], scores[..., -1:]


def written(recent: KeysAndValues, position: Any, key: Any, value: Any) -> KeysAndValues:
    """Returns recent keys `(..., H, C)` and values `(..., C, H)` with one more token."""
    keys, values = recent
    outer = [0] * (len(keys.shape) - 2)
    return KeysAndValues(
        ops.slice_update(keys, [*outer, 0, position], ops.swapaxes(key, -1, -2)),
        ops.slice_update(values, [*outer, position, 0], value),
    )


def unnormalized_softmax(parts: list[Any]) -> tuple[list[Any], Any]:
    """Returns unnormalised softmax weights of scores `(R, N, 1, K_i)` in parts, and their sum.

    Concatenating, dividing and splitting the scores would read and write them many times.
    """
    highest = [ops.max(part, axis=-1, keepdims=True) for part in parts]
    highest = functools.reduce(ops.maximum, highest)
    weights = [ops.exp(part - highest) for part in parts]
    return weights, sum(ops.sum(each, axis=-1, keepdims=True) for each in weights)
