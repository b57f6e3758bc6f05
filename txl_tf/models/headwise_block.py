"""A decoder block that reads one head after the other.

Shape letters used in this module:
  B rows, T segment length, M memory length, K = M + T key length,
  N heads, H head width.
"""

from keras import ops

from txl_tf import functional
from txl_tf.models.projected_block import ProjectedBlock


class HeadwiseBlock(ProjectedBlock):
    """A `ProjectedBlock` for few rows, long memory and a processor with caches.

    The scores `(B, N, T, K)` of all heads together are read and written many
    times, and are far larger than a cache. Those of one head are not, and
    `functional.relative_shift` of them moves nothing: it is another view.
    Each head is a part of the program of its own, so this is not for compilers
    to whom a program's length matters, nor for many rows.
    """

    def _attend(self, inputs, keys, values, mask_scores, distance_keys):
        num_heads, width = self._attention.num_heads, self._attention.head_dim
        num_tokens, key_length = inputs.shape[1], values.shape[2]
        queries = self._attention.queries(self._attention.query(inputs), **self._biases)
        content_queries, distance_queries = (
            _apart(ops.transpose(query, [0, 2, 1, 3]), [num_tokens, width]) for query in queries
        )
        keys = _apart(keys, [width, key_length])
        values = _apart(values, [key_length, width])
        masks = _apart(mask_scores, [num_tokens, key_length + 1])
        keys_of_distances = ops.unstack(distance_keys.keys, axis=0)
        attended = []
        for index, (content_query, distance_query) in enumerate(
            zip(content_queries, distance_queries, strict=True)
        ):
            row, head = divmod(index, num_heads)
            mask = masks[row if len(masks) > 1 else 0]
            scores = ops.matmul(distance_query, keys_of_distances[head]) + mask  # [T, K + 1]
            if distance_keys.scores is not None:
                scores = scores + distance_keys.scores[head]
            scores = ops.matmul(content_query, keys[index]) + _shifted(scores)  # [T, K]
            probabilities = functional.softmax_over_keys(functional.at_least_float32(scores))
            probabilities = ops.cast(probabilities, values[index].dtype)
            attended.append(ops.matmul(probabilities, values[index]))  # [T, H]
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
