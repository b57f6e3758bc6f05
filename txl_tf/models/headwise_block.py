"""A decoder block that reads one head after the other.

Shape letters used in this module:
  B rows, T segment length, M memory length, K = M + T key length, C tokens of
  a part of the segment, N heads, H head width.
"""

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
        mask_scores: tuple of float tensors that broadcast to `(B, T', K' + 1)`,
            over distances, one for each part of the segment, in order. A part
            attends to the `K'` keys that end with its own.
        distance_keys: `DistanceKeys` of the `K'` distances of the longest part.
        Others are those of `ProjectedBlock`.
    """

    keys_axis = 2

    def _split_keys(self, keys):
        return ops.transpose(self._attention.split_heads(keys), [0, 2, 1, 3])

    def _attend(self, inputs, keys, values, mask_scores, distance_keys):
        num_heads, width = self._attention.num_heads, self._attention.head_dim
        num_tokens, key_length = inputs.shape[1], values.shape[2]
        queries = self._attention.queries(self._attention.query(inputs), **self._biases)
        queries = [
            _apart(ops.transpose(query, [0, 2, 1, 3]), [num_tokens, width]) for query in queries
        ]
        keys, values = (_apart(each, [key_length, width]) for each in (keys, values))
        masks = [ops.unstack(mask, axis=0) for mask in mask_scores]
        distances = [
            [head[:, -mask.shape[2] :] for mask in mask_scores]
            for head in ops.unstack(distance_keys.keys, axis=0)
        ]
        attended = []
        for index in range(len(keys)):
            row, head = divmod(index, num_heads)
            start, of_parts = 0, []
            for part, mask in enumerate(masks):
                num_queries, num_keys = mask[0].shape[0], mask[0].shape[1] - 1
                stop = start + num_queries
                first_key = key_length - num_tokens + stop - num_keys
                content_query, distance_query = (each[index][start:stop] for each in queries)
                over_distances = ops.matmul(distance_query, distances[head][part])
                over_distances = over_distances + mask[row if len(mask) > 1 else 0]
                if distance_keys.scores is not None:
                    scores = distance_keys.scores[head]
                    over_distances = over_distances + scores[:, -num_keys - 1 :]
                part_keys = keys[index][first_key : first_key + num_keys]
                part_values = values[index][first_key : first_key + num_keys]
                scores = ops.matmul(content_query, ops.transpose(part_keys))
                scores = scores + _shifted(over_distances)  # [T', K']
                probabilities = functional.softmax_over_keys(functional.at_least_float32(scores))
                probabilities = ops.cast(probabilities, part_values.dtype)
                of_parts.append(ops.matmul(probabilities, part_values))  # [T', H]
                start = stop
            attended.append(ops.concatenate(of_parts, axis=0))  # [T, H]
        rows = [
            ops.concatenate(attended[first : first + num_heads], axis=-1)
            for first in range(0, len(attended), num_heads)
        ]
        return ops.stack(rows)  # [B, T, N * H]


def _apart(tensor, shape):
    """The matrices that a tensor is made of, without a copy."""
    return ops.unstack(ops.reshape(tensor, [-1, *shape]), axis=0)


def _shifted(scores):
    """`functional.shift_padded` of one head, `(T, K + 1)` to `(T, K)`."""
    num_tokens, width = scores.shape
    read_in_order = ops.reshape(scores, [num_tokens * width])
    return ops.reshape(read_in_order[num_tokens:], [num_tokens, width - 1])
