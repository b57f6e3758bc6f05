"""Parts of the paper's formulas, with loops, in float64: what the oracles of the tests share.

They share no code and no trick with the package. Positions of one segment are 0 .. T - 1; the
memory before it has the positions -M .. -1, so that `query - key` is the distance.
"""

import math

import numpy as np


def max_difference(first, second):
    """Largest absolute difference of two arrays that must have one shape."""
    first, second = np.asarray(first, "float64"), np.asarray(second, "float64")
    assert first.shape == second.shape, f"{first.shape} is not {second.shape}"
    return float(np.max(np.abs(first - second), initial=0.0))


def sinusoid(distance, hidden_dim, clamp_length=None):
    """The row of `R` for one distance: all sines, then all cosines."""
    if clamp_length is not None:
        distance = min(distance, clamp_length)
    row = np.zeros(hidden_dim)
    for pair in range(hidden_dim // 2):
        angle = distance / 10000.0 ** (2 * pair / hidden_dim)
        row[pair] = math.sin(angle)
        row[hidden_dim // 2 + pair] = math.cos(angle)
    return row


def is_visible(
    query, key, valid_length, memory_length, same_length, same_length_keys="memory_and_self"
):
    """Whether the query at one position may attend to the key at another."""
    if key > query:
        return False  # the future
    if key < -valid_length:
        return False  # a slot of the memory that was never filled
    # With `same_length` a query sees itself and the M positions before it, or M with itself.
    seen_before = memory_length if same_length_keys == "memory_and_self" else memory_length - 1
    return not same_length or query - key <= seen_before


def softmax(scores):
    """Probabilities of a list of scores; a score of None is hidden."""
    highest = max(score for score in scores if score is not None)
    powers = [0.0 if score is None else math.exp(score - highest) for score in scores]
    return [power / sum(powers) for power in powers]


def layer_norm(vector, gain, offset, epsilon):
    """Normalises one vector by its own mean and variance."""
    mean = sum(vector) / len(vector)
    variance = sum((value - mean) ** 2 for value in vector) / len(vector)
    return (vector - mean) / math.sqrt(variance + epsilon) * gain + offset


def feed_forward(vector, weights):
    """Two affine maps of one vector, with a ReLU between them."""
    inner = vector @ weights["inner_kernel"] + weights["inner_bias"]
    inner = np.array([max(value, 0.0) for value in inner])
    return inner @ weights["outer_kernel"] + weights["outer_bias"]


def extended_memory(memory, inputs):
    """The last M vectors of memory and inputs, one row at a time."""
    memory_length = memory.shape[1]
    rows = []
    for old, new in zip(memory, inputs, strict=True):
        vectors = [*old, *new]
        rows.append(vectors[len(vectors) - memory_length :])
    return np.array(rows).reshape(memory.shape)
