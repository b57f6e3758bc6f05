"""A decoder block that reads one token at a time.

Shape letters used in this module:
  B rows of memory, W rows that share one of them, R = B * W rows, M memory
  length, C capacity for recent tokens, D hidden width, N heads, H head width.
"""

import functools
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

    def projection_kernel(self):
        """What takes inputs to query, key and value at once.

        Returns:
            Float tensor `(D, 3 * N * H)`.
        """
        attention = self._attention
        kernels = [attention.key.kernel, attention.value.kernel]
        kernels = [ops.cast(kernel, attention.compute_dtype) for kernel in kernels]
        return ops.concatenate([attention.scaled_query_kernel(), *kernels], axis=-1)

    def __call__(self, hidden, memory, recent, position, mask_scores, kernel, over_distances):
        """Reads one token per row.

        Args:
            hidden: float tensor `(R, 1, D)`.
            memory: tuple of keys `(B, N, H, M)` and values `(B, N, M, H)`.
            recent: tuple of keys `(R, N, H, C)` and values `(R, N, C, H)`.
            position: int32 scalar. The place of the token among the recent.
            mask_scores: tuple of float tensors `(R, 1, 1, M)` and `(R, 1, 1, C)`:
                0 where attention is allowed, very negative elsewhere. It is not
                allowed to the place of the token.
            kernel: what `projection_kernel` returned.
            over_distances: function of distance queries `(R, N, 1, H)` that
                returns scores for memory `(R, N, 1, M)`, for the recent
                `(R, N, 1, C)` and for the token itself `(R, N, 1, 1)`.

        Returns:
            Tuple of the next hidden states `(R, 1, D)` and the next `recent`.
        """
        query, key, value = self._project(hidden, kernel)
        content_query, distance_query = query
        of_memory, of_recent, of_itself = over_distances(distance_query)
        rows_per_memory = hidden.shape[0] // memory[0].shape[0]
        of_itself = of_itself + ops.sum(content_query * key, axis=-1, keepdims=True)
        of_recent = of_recent + ops.matmul(content_query, recent[0])
        scores = [
            functional.at_least_float32(of_itself),
            functional.at_least_float32(of_recent) + mask_scores[1],
        ]
        if memory[0].shape[3] > 0:
            of_memory = of_memory + _of_memory(content_query, memory[0], rows_per_memory)
            scores.append(functional.at_least_float32(of_memory) + mask_scores[0])
        weights, total = _unnormalized_softmax(scores)
        weights = [ops.cast(each, value.dtype) for each in weights]
        attended = weights[0] * value + ops.matmul(weights[1], recent[1])  # [R, N, 1, H]
        if memory[0].shape[3] > 0:
            attended = attended + _of_memory(weights[2], memory[1], rows_per_memory)
        # What is divided last is the least.
        attended = ops.cast(functional.at_least_float32(attended) / total, value.dtype)
        attended = ops.reshape(attended, [hidden.shape[0], 1, -1])
        hidden = self._transform(hidden, _dense(self._attention.output_projection, attended))
        # After all that reads them, so that no compiler keeps a copy for that.
        recent = (
            ops.slice_update(recent[0], [0, 0, 0, position], ops.swapaxes(key, 2, 3)),
            ops.slice_update(recent[1], [0, 0, position, 0], value),
        )
        return hidden, recent

    def _project(self, hidden, kernel):
        """Both queries, the key and the value of the token, each `(R, N, 1, H)`."""
        attention = self._attention
        projected = _product(self._attention_inputs(hidden), kernel)  # [R, 1, 3 * N * H]
        query, key, value = ops.split(projected, 3, axis=-1)
        queries = attention.queries(query, **self._biases)
        # One token has its heads in order, whichever axis comes first.
        shape = [-1, attention.num_heads, 1, attention.head_dim]
        queries = tuple(ops.reshape(each, shape) for each in queries)
        return queries, ops.reshape(key, shape), ops.reshape(value, shape)

    def _feed_forward(self, rows):
        feed_forward = self._block.feed_forward
        return _dense(feed_forward.outer, _dense(feed_forward.inner, rows))


def _unnormalized_softmax(parts):
    """Weights of keys whose scores are in several tensors, and the sum of all weights.

    Putting scores together, dividing each and taking them apart again reads and
    writes them many times.

    Args:
        parts: list of float tensors `(R, N, 1, K_i)`, at least float32.

    Returns:
        Tuple of a list of as many tensors, and of their sum `(R, N, 1, 1)`.
    """
    highest = [ops.max(part, axis=-1, keepdims=True) for part in parts]
    highest = functools.reduce(ops.maximum, highest)
    weights = [ops.exp(part - highest) for part in parts]
    return weights, sum(ops.sum(each, axis=-1, keepdims=True) for each in weights)


def _dense(layer, inputs):
    """What a `Dense` layer makes of `(..., X)`."""
    outputs = _product(inputs, ops.cast(layer.kernel, inputs.dtype))
    if layer.use_bias:
        outputs = outputs + ops.cast(layer.bias, outputs.dtype)
    return layer.activation(outputs)


def _product(inputs, kernel):
    """Inputs `(..., X)` times a kernel `(X, Y)`; of one row as the sum of two products.

    XLA computes the product of one row by one thread of a processor, and those
    that are batched by several. The time is that of reading the kernel.
    """
    width, units = kernel.shape
    if math.prod(inputs.shape) > width or width % 2:
        return ops.matmul(inputs, kernel)
    halves = ops.reshape(kernel, [2, width // 2, units])
    products = ops.matmul(ops.reshape(inputs, [2, 1, width // 2]), halves)  # [2, 1, Y]
    return ops.reshape(ops.sum(products, axis=0), [*inputs.shape[:-1], units])


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
