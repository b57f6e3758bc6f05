"""The formulas of Transformer-XL as plain functions of tensors.

Shape letters used in this module:
  B rows, T segment length, M memory length, K = M + T key length,
  D hidden width, N heads.

Everything uses `keras.ops`, so it runs on every Keras backend.
"""

import math

import keras
from keras import ops

from txl_tf.stateless_random import row_seeds as row_seeds

# Score of a masked pair; its exp() is 0.
MASKED_SCORE = -1e30
# The range of float16 ends at 65,504, and other terms are added to this score.
_MASKED_SCORE_FLOAT16 = -3e4


def relative_positional_encoding(key_length, hidden_dim, clamp_length=None, dtype="float32"):
    """Computes the sinusoids of the distances `key_length - 1` down to 0.

    Dai et al. (2019), Section 3.3: `R`. The sines of all frequencies come
    first, then the cosines.

    Args:
        key_length: int. Number of distances, `K`.
        hidden_dim: int. Width `D`; even.
        clamp_length: optional int. Larger distances are encoded as this one.
        dtype: str. Dtype of the result; the angles are float32 always.

    Returns:
        Float tensor `(K, D)`; row `j` encodes the distance `K - 1 - j`.
    """
    # bfloat16 counts only to 256, so far distances would share an angle.
    distances = ops.arange(key_length - 1, -1, -1, dtype="float32")  # [K]
    if clamp_length is not None:
        distances = ops.minimum(distances, float(clamp_length))
    exponents = ops.arange(0, hidden_dim, 2, dtype="float32") / float(hidden_dim)
    angles = ops.expand_dims(distances, 1) * ops.power(10000.0, -exponents)  # [K, D / 2]
    return ops.cast(ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=1), dtype)


def distances_to_end(key_length, num_positions):
    """Maps each of `K` keys to its row in a table of `P` distances, int32 `(K,)`.

    Key `j` is `K - 1 - j` before the last; farther keys share the last row.
    """
    distances = ops.arange(key_length - 1, -1, -1, dtype="int32")
    return ops.minimum(distances, num_positions - 1)


def add_positions(positions, inputs, memory):
    """Adds positions `(K, D)`, counted from the end of the segment, to segment and memory.

    The memory is `(B, M, D)` or `None`, the segment's `inputs` are `(B, T, D)`. Returns both.
    """
    memory_length = 0 if memory is None else memory.shape[1]
    if memory_length:
        memory = ops.cast(memory, inputs.dtype) + positions[:memory_length]
    return inputs + positions[memory_length:], memory


def relative_shift(scores):
    """Shifts scores by distance to scores by key.

    Each query row moves left by one place less than the row above. Padding one column and
    reshaping does this without a gather (Appendix B). For T = 2 and K = 3, with `-` hidden by the
    causal mask:

        scores over distances      scores over keys
          2   1   0                  1  0  -
          2'  1'  0'                 2' 1' 0'

    Args:
        scores: float tensor `(B, N, T, K)`; column `j` belongs to the
            distance `K - 1 - j`.

    Returns:
        Float tensor `(B, N, T, K)`; column `j` belongs to key `j`.
    """
    # Only distances for which the first query has no key are dropped with the padding.
    return shift_padded(ops.pad(scores, [[0, 0], [0, 0], [0, 0], [1, 0]]))


def shift_padded(scores):
    """Applies `relative_shift` to the last `K` columns, `(B, N, T, K + 1)` to `(B, N, T, K)`.

    If the extra column already exists, the numbers are moved once instead of twice. Column 0 may
    hold anything; column `1 + j` belongs to the distance `K - 1 - j`.
    """
    _, num_heads, segment_length, width = ops.shape(scores)
    num_scores = segment_length * width
    read_in_order = ops.reshape(scores, [-1, num_heads, num_scores])
    # `ops.slice`, because the gradient of indexing is slow in TensorFlow.
    shape = [ops.shape(read_in_order)[0], num_heads, num_scores - segment_length]
    shifted = ops.slice(read_in_order, [0, 0, segment_length], shape)
    return ops.reshape(shifted, [-1, num_heads, segment_length, width - 1])


def mask_over_distances(allowed, dtype):
    """Returns scores over distances that hide keys, `(B, N, T, K + 1)`.

    They are 0 where `allowed`, bool `(B, N, T, K)`, is true. `shift_padded` turns them into scores
    over keys.
    """
    scores = mask_scores(ops.zeros((), dtype), allowed)
    rows, num_heads, segment_length, key_length = ops.shape(scores)
    read_in_order = ops.reshape(scores, [rows, num_heads, segment_length * key_length])
    padded_mask = ops.pad(read_in_order, [[0, 0], [0, 0], [segment_length, 0]])
    return ops.reshape(padded_mask, [rows, num_heads, segment_length, key_length + 1])


def mask_scores(scores, allowed):
    """Replaces scores `(B, N, T, K)` where `allowed` is false, so that softmax gives exactly 0."""
    # Not minus infinity: a query without keys would give NaN, and so would all gradients.
    is_short = keras.backend.standardize_dtype(scores.dtype) == "float16"
    masked_score = _MASKED_SCORE_FLOAT16 if is_short else MASKED_SCORE
    return ops.where(allowed, scores, ops.cast(masked_score, scores.dtype))


def softmax_over_keys(scores):
    """Returns the attention probabilities of scores `(B, N, T, K)`, of the same shape."""
    if scores.shape[-1] == 1:  # Keras warns here, but the first token has one key.
        return ops.ones_like(scores)
    return ops.softmax(scores, axis=-1)


def at_least_float32(tensor):
    """Casts half precision to float32; float32 and float64 stay."""
    is_double = keras.backend.standardize_dtype(tensor.dtype) == "float64"
    return tensor if is_double else ops.cast(tensor, "float32")


def next_memory(memory, inputs, lengths=None):
    """Returns the last `M` positions of memory and segment, without a gradient, `(B, M, D)`.

    Dai et al. (2019), Section 3.2: `SG(h)`. Memory is `(B, M, D)`, the segment's `inputs` of the
    layer are `(B, T, D)`. `lengths`, int32 `(B,)` or `()`, are the tokens of each row to remember;
    by default all.
    """
    memory_length, segment_length = memory.shape[1], inputs.shape[1]
    if memory_length == 0:
        return memory
    inputs = ops.cast(inputs, memory.dtype)
    # A segment as long as the memory replaces it, without copying both.
    if lengths is not None or segment_length is None or segment_length < memory_length:
        inputs = ops.concatenate([memory, inputs], axis=1)
    return ops.stop_gradient(last_positions(inputs, 1, lengths, memory_length))


def last_positions(tensor, axis, lengths, memory_length):
    """Returns the last `M` positions of each row along an axis, at least 1.

    The tensor has rows first, and along `axis` the memory, then the new positions. `lengths`,
    int32 `(B,)` or `()`, are the new positions of each row to keep; `None` keeps all.
    """
    shape = ops.shape(tensor)
    sizes = [*shape[:axis], memory_length, *shape[axis + 1 :]]
    if lengths is None or len(lengths.shape) == 0 or tensor.shape[0] == 1:
        starts = [0] * len(shape)
        starts[axis] = kept_from = shape[axis] - memory_length
        if lengths is not None:
            starts[axis] = ops.reshape(lengths, [])
        elif isinstance(kept_from, int):
            return tensor[(slice(None),) * axis + (slice(kept_from, None),)]
        return ops.slice(tensor, starts, sizes)
    # One gather along a single axis: an index for every number is far slower.
    before = math.prod(shape[1:axis])
    places = ops.expand_dims(lengths, 1) + ops.arange(memory_length, dtype="int32")  # [B, M]
    places = ops.repeat(places, before, axis=0) if before > 1 else places
    firsts = ops.arange(shape[0] * before, dtype="int32") * shape[axis]
    rows = ops.reshape(tensor, [-1, *shape[axis + 1 :]])
    return ops.reshape(ops.take(rows, places + ops.expand_dims(firsts, 1), axis=0), sizes)


def next_valid_length(valid_length, memory_length, num_tokens, document_starts=None):
    """Computes the filled length of memory after more tokens, int32 `(B,)`, at most `M`.

    `num_tokens` is the number of new tokens: an int, or int32 `(B,)`, one for each row. With
    `document_starts`, bool `(B, T)`, it is `T`, and tokens before the last start are not
    remembered.
    """
    length = valid_length + num_tokens
    if document_starts is not None:
        after_start = num_tokens - ops.arange(num_tokens, dtype="int32")  # [T]
        lengths = ops.where(document_starts, after_start, ops.expand_dims(length, 1))
        length = ops.min(lengths, axis=1)
    return ops.minimum(length, memory_length)


def negative_log_likelihood(logits, target_ids):
    """Computes nats `(...)` per token, at least float32, of logits `(..., V)` and int targets."""
    logits = at_least_float32(logits)
    return ops.sparse_categorical_crossentropy(target_ids, logits, from_logits=True)
