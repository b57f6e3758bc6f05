"""A decoder block that reads one token at a time.

Shape letters used in this module:
  B rows of memory, W rows that share one of them, R = B * W rows, M memory
  length, C capacity for recent tokens, D hidden width, N heads, H head width.
"""

import math

from keras import ops

from txl_tf import functional
from txl_tf.models.inference_block import InferenceBlock


class TokenBlock(InferenceBlock):
    """Runs a `DecoderBlock` for inference on segments of one token.

    It computes what `ProjectedBlock` does, in an order in which memory is only
    read. Several rows may share a row of memory, as the beams of one text do.

    Args:
        block: `DecoderBlock` whose positions are relative.
        biases: dict of `content_bias` and `position_bias` where the block has
            none of its own, or empty.
    """

    def folding_projection(self):
        """What takes a distance query to the width of the sinusoids.

        Returns:
            Float tensor `(N, H, D)`.
        """
        attention = self._attention
        kernel = ops.cast(attention.position.kernel, attention.compute_dtype)  # [D, N * H]
        heads = ops.reshape(kernel, [-1, attention.num_heads, attention.head_dim])
        return ops.transpose(heads, [1, 2, 0])

    def __call__(self, hidden, memory, recent, position, mask_scores, over_distances):
        """Reads one token per row.

        Args:
            hidden: float tensor `(R, 1, D)`.
            memory: tuple of keys `(B, N, H, M)` and values `(B, N, M, H)`.
            recent: tuple of keys `(R, N, H, C)` and values `(R, N, C, H)`.
            position: int32 scalar. The place of the token among the recent.
            mask_scores: float tensor `(R, 1, 1, M + C)`: 0 where attention is
                allowed, very negative elsewhere.
            over_distances: function of distance queries `(R, N, 1, H)` that
                returns scores `(R, N, 1, M + C)`.

        Returns:
            Tuple of the next hidden states `(R, 1, D)` and the next `recent`.
        """
        attention = self._attention
        inputs = self._attention_inputs(hidden)
        recent = self._remember(inputs, recent, position)
        queries = attention.queries(_product(attention.query, inputs), **self._biases)
        # One token has its heads in order, whichever axis comes first.
        shape = [-1, attention.num_heads, 1, attention.head_dim]
        content_query, distance_query = (ops.reshape(query, shape) for query in queries)
        rows_per_memory = hidden.shape[0] // memory[0].shape[0]
        scores = ops.concatenate(
            [
                _of_memory(content_query, memory[0], rows_per_memory),
                ops.matmul(content_query, recent[0]),
            ],
            axis=-1,
        )
        scores = functional.at_least_float32(scores + over_distances(distance_query))
        probabilities = functional.softmax_over_keys(scores + mask_scores)
        probabilities = ops.cast(probabilities, memory[1].dtype)  # [R, N, 1, M + C]
        memory_length = memory[1].shape[2]
        attended = _of_memory(probabilities[..., :memory_length], memory[1], rows_per_memory)
        attended = attended + ops.matmul(probabilities[..., memory_length:], recent[1])
        attended = ops.reshape(attended, [-1, 1, attention.num_heads * attention.head_dim])
        attended = _product(attention.output_projection, attended)
        return self._transform(hidden, attended), recent

    def _remember(self, inputs, recent, position):
        attention = self._attention
        heads = [-1, attention.num_heads]
        key = ops.reshape(_product(attention.key, inputs), [*heads, attention.head_dim, 1])
        value = ops.reshape(_product(attention.value, inputs), [*heads, 1, attention.head_dim])
        return (
            ops.slice_update(recent[0], [0, 0, 0, position], key),
            ops.slice_update(recent[1], [0, 0, position, 0], value),
        )

    def _feed_forward(self, rows):
        feed_forward = self._block.feed_forward
        return _product(feed_forward.outer, _product(feed_forward.inner, rows))


def _product(dense, inputs):
    """What a `Dense` layer makes of `(..., X)`; of one row as the sum of two products.

    XLA computes the product of one row by one thread of a processor, and those
    that are batched by several. The time is that of reading the kernel.
    """
    width = inputs.shape[-1]
    if math.prod(inputs.shape) > width or width % 2:
        return dense(inputs)
    kernel = ops.cast(dense.kernel, inputs.dtype)
    halves = ops.reshape(kernel, [2, width // 2, dense.units])
    products = ops.matmul(ops.reshape(inputs, [2, 1, width // 2]), halves)  # [2, 1, Y]
    outputs = ops.reshape(ops.sum(products, axis=0), [*inputs.shape[:-1], dense.units])
    if dense.use_bias:
        outputs = outputs + ops.cast(dense.bias, outputs.dtype)
    return dense.activation(outputs)


def _of_memory(rows, memory, rows_per_memory):
    """Products `(R, N, 1, Y)` of rows `(R, N, 1, X)` with memory `(B, N, X, Y)`."""
    if rows_per_memory == 1:
        return ops.matmul(rows, memory)
    _, num_heads, _, width = rows.shape
    grouped = ops.reshape(rows, [-1, rows_per_memory, num_heads, width])  # [B, W, N, X]
    products = ops.matmul(ops.transpose(grouped, [0, 2, 1, 3]), memory)  # [B, N, W, Y]
    return ops.reshape(
        ops.transpose(products, [0, 2, 1, 3]), [-1, num_heads, 1, products.shape[-1]]
    )
