"""A decoder block that reads one head after the other.

Shape letters used in this module:
  B rows, T segment length, M memory length, K = M + T key length, C tokens of
  a part of the segment, N heads, H head width.
"""

import itertools

from keras import ops

from txl_tf import functional
from txl_tf.models.projected_block import ProjectedBlock


class HeadwiseBlock(ProjectedBlock):
    """A `ProjectedBlock` for few rows, long memory and a processor with caches.

    The scores `(B, N, T, K)` of all heads together are read and written many
    times, and are far larger than a cache. Those of one head and a part of the
    segment are not, and `functional.relative_shift` of them moves nothing: it
    is another view. A part attends to the memory before it and to nothing that
    is farther back, which saves that, while all other layers read the whole
    segment at once.

    Keys are `(B, N, K, H)` here, like values, so that the keys of a part are a
    view too. Each head is a part of the program of its own, so this is not for
    compilers to whom a program's length matters, nor for many rows.

    Call arguments:
        mask_scores: tuple of float tensors that broadcast to `(B, C, M + C + 1)`,
            over distances, one for each part of the segment, in order. A part
            attends to the `M + C` keys that end with its own.
        distance_keys: `DistanceKeys` of the `M + C` distances of the longest part.
        Others are those of `ProjectedBlock`.
    """

    keys_axis = 2

    def _split_keys(self, keys):
        return ops.transpose(self._attention.split_heads(keys), [0, 2, 1, 3])

    def _attend(self, inputs, keys, values, mask_scores, distance_keys):
        num_heads, width = self._attention.num_heads, self._attention.head_dim
        num_tokens, key_length = inputs.shape[1], values.shape[2]
        queries = [
            _apart(ops.transpose(query, [0, 2, 1, 3]), [num_tokens, width])
            for query in self._queries(inputs)
        ]
        keys, values = (_apart(each, [key_length, width]) for each in (keys, values))
        parts = _parts(mask_scores, distance_keys, key_length - num_tokens)
        attended = []
        for index in range(len(keys)):
            row, head = divmod(index, num_heads)
            content, distance = (each[index] for each in queries)
            of_parts = [
                part.attend(content, distance, keys[index], values[index], row, head)
                for part in parts
            ]
            attended.append(ops.concatenate(of_parts, axis=0))  # [T, H]
        rows = [
            ops.concatenate(attended[first : first + num_heads], axis=-1)
            for first in range(0, len(attended), num_heads)
        ]
        return ops.stack(rows)  # [B, T, N * H]


class _Part:
    """Tokens that attend together, and the keys that they attend to.

    Args:
        start: int. The first of the tokens.
        memory_length: int. `M`: how many keys come before that of the first token.
        mask: float tensor that broadcasts to `(B, C, M + C + 1)`.
        distance_keys: `DistanceKeys` of as many distances, or more.
    """

    def __init__(self, start, memory_length, mask, distance_keys):
        num_tokens, width = mask.shape[1:]
        self._tokens = slice(start, start + num_tokens)
        self._keys = slice(start, start + memory_length + num_tokens)
        self._masks = ops.unstack(mask, axis=0)
        # More distances than are needed are those that are too far.
        self._distance_keys = [head[:, -width:] for head in ops.unstack(distance_keys.keys, axis=0)]
        self._distance_scores = None
        if distance_keys.scores is not None:
            self._distance_scores = distance_keys.scores[..., -width:]

    def attend(self, content_queries, distance_queries, keys, values, row, head):
        """What a head `(T, H)` has read of its keys and values `(K, H)`: `(C, H)`."""
        keys, values = keys[self._keys], values[self._keys]
        scores = ops.matmul(distance_queries[self._tokens], self._distance_keys[head])
        scores = scores + self._masks[row if len(self._masks) > 1 else 0]
        if self._distance_scores is not None:
            scores = scores + self._distance_scores[head]
        contents = ops.matmul(content_queries[self._tokens], ops.transpose(keys))
        scores = functional.at_least_float32(contents + _shifted(scores))  # [C, M + C]
        probabilities = ops.cast(functional.softmax_over_keys(scores), values.dtype)
        return ops.matmul(probabilities, values)


def _parts(masks, distance_keys, memory_length):
    starts = itertools.accumulate((mask.shape[1] for mask in masks[:-1]), initial=0)
    return [
        _Part(start, memory_length, mask, distance_keys)
        for start, mask in zip(starts, masks, strict=True)
    ]


def _apart(tensor, shape):
    """The matrices that a tensor is made of, without a copy."""
    return ops.unstack(ops.reshape(tensor, [-1, *shape]), axis=0)


def _shifted(scores):
    """`functional.shift_padded` of one head, `(T, K + 1)` to `(T, K)`."""
    num_tokens, width = scores.shape
    read_in_order = ops.reshape(scores, [num_tokens * width])
    return ops.reshape(read_in_order[num_tokens:], [num_tokens, width - 1])
