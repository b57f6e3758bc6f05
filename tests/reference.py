"""Parts of the paper's formulas in float64, with which tests compare results of the package.

The formulas are written plainly and import nothing of the package. Positions of one segment are
0 .. T - 1. The memory before it has the positions -M .. -1, so `query - key` is the distance.
"""

import math

import numpy as np


def max_difference(first, second):
    """Returns the largest absolute difference of two arrays, which must have equal shapes."""
    first, second = np.asarray(first, "float64"), np.asarray(second, "float64")
    assert first.shape == second.shape, f"{first.shape} is not {second.shape}"
    return float(np.max(np.abs(first - second), initial=0.0))


def sinusoid(distance, hidden_dim, clamp_length=None):
    """Returns the row of `R` for one distance: all sines, then all cosines."""
    if clamp_length is not None:
        distance = min(distance, clamp_length)
    row = np.zeros(hidden_dim)
    for pair in range(hidden_dim // 2):
        angle = distance / 10000.0 ** (2 * pair / hidden_dim)
        row[pair] = math.sin(angle)
        row[hidden_dim // 2 + pair] = math.cos(angle)
    return row


def is_visible(distance, key, valid_length, memory_length, same_length, same_length_keys):
    """True if a query sees the key at position `key`, which is `distance` before the query."""
    is_future, is_unfilled = distance < 0, key < -valid_length
    # With `same_length` a query sees itself and the M positions before it, or only M - 1 of them.
    reach = memory_length - (same_length_keys == "memory")
    return not is_future and not is_unfilled and (not same_length or distance <= reach)


def softmax(scores):
    """Returns the probabilities for a vector of scores; minus infinity hides a key."""
    powers = np.exp(scores - np.max(scores))
    return powers / powers.sum()


def layer_norm(vectors, gain, offset, epsilon):
    """Normalises every vector by its own mean and variance."""
    centred = vectors - vectors.mean(axis=-1, keepdims=True)
    variance = np.mean(centred**2, axis=-1, keepdims=True)
    return centred / np.sqrt(variance + epsilon) * gain + offset


def feed_forward(vectors, weights):
    """Applies two affine maps to every vector, with a ReLU between them."""
    inner = np.maximum(vectors @ weights["inner_kernel"] + weights["inner_bias"], 0.0)
    return inner @ weights["outer_kernel"] + weights["outer_bias"]


def extended_memory(memory, inputs):
    """Returns the last M vectors of memory and inputs, for every row."""
    return np.concatenate([memory, inputs], axis=1)[:, inputs.shape[1] :]
