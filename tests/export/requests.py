"""Requests to an exported model, as tensors by name."""

import numpy as np
import tensorflow as tf

SETTINGS = {
    "max_tokens": np.int32(6),
    "temperature": np.float32(0.0),
    "top_k": np.int32(0),
    "top_p": np.float32(1.0),
    "min_p": np.float32(0.0),
    "seed": np.int32(0),
}


def tensors(values):
    """Arrays as the tensors that a signature takes."""
    return {name: tf.constant(value) for name, value in values.items()}


def nothing_read(num_rows):
    """The short form of memory that is empty."""
    return {
        "memory_states": np.zeros((0,), "float32"),
        "memory_valid_length": np.zeros(num_rows, "int32"),
    }


def memory_in(answer):
    """The memory of an answer."""
    return {name: answer[name] for name in ("memory_states", "memory_valid_length")}


def random_ids(num_rows, num_tokens, vocabulary_size=256, seed=0):
    """Token ids of every value."""
    drawn = np.random.default_rng(seed).integers(0, vocabulary_size, (num_rows, num_tokens))
    return drawn.astype("int32")


def rows_of(token_ids, lengths=None):
    """Token ids and how many of each row count; by default all."""
    if lengths is None:
        lengths = [token_ids.shape[1]] * len(token_ids)
    return {"token_ids": token_ids, "lengths": np.array(lengths, "int32")}


def settings(num_rows, **changes):
    """Settings of all rows, each a scalar or a list."""
    values = {**SETTINGS, **changes}
    return {
        name: np.broadcast_to(np.asarray(values[name], default.dtype), [num_rows])
        for name, default in SETTINGS.items()
    }


def generate(signatures, rows, memory, stop_token_ids=((-1,),), **changes):
    """Continues rows; memory comes from an answer or `nothing_read`."""
    stops = {"stop_token_ids": np.array(stop_token_ids, "int32")}
    of_rows = settings(len(rows["token_ids"]), **changes)
    return signatures["generate"](**tensors({**rows, **of_rows, **stops, **memory}))


def score(signatures, text, memory, lengths=None):
    """Scores a text `(B, T + 1)`; memory comes from an answer or `nothing_read`."""
    values = {**rows_of(text[:, :-1], lengths), "target_ids": text[:, 1:], **memory}
    return signatures["score"](**tensors(values))
