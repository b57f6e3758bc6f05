"""The formulas of Transformer-XL as plain functions of tensors.

Shape letters used in this module:
  B rows, T segment length, M memory length, K = M + T key length,
  D hidden width, N heads.

All of it is `keras.ops`, so it runs on every Keras backend.
"""

import keras
from keras import ops

MASKED_SCORE = -1e30
"""Added to the score of a pair that must not attend; exp() of it is 0."""


def relative_positional_encoding(key_length, hidden_dim, clamp_length=None, dtype="float32"):
    """Sinusoids of the distances `key_length - 1` down to 0.

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
    distances = ops.arange(key_length - 1, -1, -1, dtype="float32")  # [K]
    if clamp_length is not None:
        distances = ops.minimum(distances, float(clamp_length))
    exponents = ops.arange(0, hidden_dim, 2, dtype="float32") / float(hidden_dim)
    angles = ops.expand_dims(distances, 1) * ops.power(10000.0, -exponents)  # [K, D / 2]
    return ops.cast(ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=1), dtype)


def distances_to_end(key_length, num_positions):
    """Row of a table of `num_positions` distances for every key.

    Args:
        key_length: int. Number of keys, `K`.
        num_positions: int. Rows of the table; farther keys share the last.

    Returns:
        Int32 tensor `(K,)`; key `j` is `K - 1 - j` before the last.
    """
    distances = ops.arange(key_length - 1, -1, -1, dtype="int32")
    return ops.minimum(distances, num_positions - 1)


def relative_shift(scores):
    """Turns scores over distances into scores over keys.

    Query `i` of `T` sees key `j` of `K` at the distance `K - T + i - j`, whose
    encoding is row `T - 1 - i + j`: every query row moves left by one place
    less than the row above. Padding one column and reading the same numbers
    with another row length does it without a gather (Appendix B). For T = 2
    and K = 3, with `-` for what the causal mask hides:

        scores over distances      scores over keys
          2   1   0                  1  0  -
          2'  1'  0'                 2' 1' 0'

    Args:
        scores: float tensor `(B, N, T, K)`; column `j` belongs to the
            distance `K - 1 - j`.

    Returns:
        Float tensor `(B, N, T, K)`; column `j` belongs to key `j`.
    """
    _, num_heads, segment_length, key_length = ops.shape(scores)
    padded = ops.pad(scores, [[0, 0], [0, 0], [0, 0], [1, 0]])  # [B, N, T, K + 1]
    turned = ops.reshape(padded, [-1, num_heads, key_length + 1, segment_length])
    return ops.reshape(turned[:, :, 1:], [-1, num_heads, segment_length, key_length])


def causal_memory_mask(
    segment_length,
    memory_length,
    valid_length=None,
    same_length=False,
    same_length_keys="memory_and_self",
):
    """Which keys every query may attend to.

    Args:
        segment_length: int. Number of queries, `T`.
        memory_length: int. Number of remembered keys before them, `M`.
        valid_length: optional int32 tensor `(B,)`. How many of the last memory
            positions are filled; `None` means all of them.
        same_length: bool. Whether every query sees equally many keys.
        same_length_keys: str. How many these are: `"memory_and_self"`, itself
            and the `M` before it, or `"memory"`, itself and the `M - 1` before
            it.

    Returns:
        Boolean tensor `(B, 1, T, K)`, or `(1, 1, T, K)` without
        `valid_length`; True where attention is allowed.

    Raises:
        ValueError: If a query could not even see itself.
    """
    queries = ops.expand_dims(ops.arange(segment_length, dtype="int32"), 1)  # [T, 1]
    keys = ops.expand_dims(ops.arange(memory_length + segment_length, dtype="int32"), 0)
    distances = queries + memory_length - keys  # [T, K]
    allowed = distances >= 0
    if same_length:
        farthest = memory_length if same_length_keys == "memory_and_self" else memory_length - 1
        if farthest < 0:
            raise ValueError(
                "`same_length_keys='memory'` leaves nothing to attend to without a memory. "
                f"Received: memory_length={memory_length}"
            )
        allowed = ops.logical_and(allowed, distances <= farthest)
    allowed = ops.reshape(allowed, [1, 1, segment_length, memory_length + segment_length])
    if valid_length is None or memory_length == 0:
        return allowed
    first_filled = ops.reshape(memory_length - valid_length, [-1, 1, 1, 1])
    filled = ops.reshape(keys, [1, 1, 1, -1]) >= first_filled  # [B, 1, 1, K]
    return ops.logical_and(allowed, filled)


def mask_scores(scores, allowed):
    """Replaces scores of hidden pairs, so that softmax gives them exactly 0.

    Args:
        scores: float tensor `(B, N, T, K)`.
        allowed: boolean tensor that broadcasts to the same shape.

    Returns:
        Float tensor `(B, N, T, K)`.
    """
    return ops.where(allowed, scores, ops.cast(MASKED_SCORE, scores.dtype))


def at_least_float32(tensor):
    """Casts half precision up; float32 and float64 stay what they are.

    Args:
        tensor: float tensor.

    Returns:
        Float32 or float64 tensor of the same shape.
    """
    is_double = keras.backend.standardize_dtype(tensor.dtype) == "float64"
    return tensor if is_double else ops.cast(tensor, "float32")


def next_memory(memory, inputs):
    """The last `M` positions of the memory and the segment, as a constant.

    Dai et al. (2019), Section 3.2: `SG(h)`. No gradient flows into what is
    remembered.

    Args:
        memory: float tensor `(B, M, D)`.
        inputs: float tensor `(B, T, D)`. A layer's inputs for this segment.

    Returns:
        Float tensor `(B, M, D)`.
    """
    memory_length, segment_length = memory.shape[1], inputs.shape[1]
    if memory_length == 0:
        return memory
    inputs = ops.cast(inputs, memory.dtype)
    if segment_length is not None and segment_length >= memory_length:
        return ops.stop_gradient(inputs[:, segment_length - memory_length :])
    both = ops.concatenate([memory, inputs], axis=1)
    return ops.stop_gradient(both[:, -memory_length:])


def next_valid_length(valid_length, memory_length, segment_length):
    """How much of the memory is filled after one more segment.

    Args:
        valid_length: int32 tensor `(B,)`.
        memory_length: int. `M`.
        segment_length: int. `T`.

    Returns:
        Int32 tensor `(B,)`, at most `M`.
    """
    return ops.minimum(valid_length + segment_length, memory_length)


def fold_seed(seed, site):
    """A seed of its own for each place that draws random numbers.

    Only the second number changes, so the first must come from a hash of what
    tells steps and replicas apart, not from a count of them.

    Args:
        seed: optional integer tensor `(2,)`.
        site: int. A number that no other place uses with this seed.

    Returns:
        Integer tensor `(2,)`, or `None` if `seed` is `None`.
    """
    if seed is None:
        return None
    return seed + ops.convert_to_tensor([0, site], dtype=seed.dtype)


def negative_log_likelihood(logits, target_ids):
    """Nats per token, in float32.

    Args:
        logits: float tensor `(..., V)`.
        target_ids: int tensor `(...)`.

    Returns:
        Float32 tensor `(...)`.
    """
    logits = at_least_float32(logits)
    return ops.sparse_categorical_crossentropy(target_ids, logits, from_logits=True)
