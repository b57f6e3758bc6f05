"""The variants that the tests of this folder go through, as small models."""

import itertools

import numpy as np
from keras import ops

from tests.layer_checks import randomize_weights
from txl_tf.config.model import ModelConfig
from txl_tf.models.transformer_xl import TransformerXL

B, T, M, V = 2, 4, 6, 11
ENCODINGS = ["transformer_xl", "shaw", "sinusoidal", "learned"]
COMBINATIONS = list(itertools.product(ENCODINGS, [True, False], [False, True]))
"""Position encoding, recurrence, pre norm: all of them."""

SIZES = {
    "vocabulary_size": V,
    "num_layers": 2,
    "hidden_dim": 6,
    "num_heads": 2,
    "head_dim": 3,
    "intermediate_dim": 10,
    "segment_length": T,
    "memory_length": M,
    "dropout": 0.0,
    # Normalising six nearly equal numbers by 1e-12 would magnify what rounding leaves.
    "layer_norm_epsilon": 1e-6,
}
ADAPTIVE = {  # 40 ids in three clusters, widths 8, 4 and 2
    "vocabulary_size": 40,
    "embedding_dim": 8,
    "cutoffs": (5, 17),
    "division_factor": 2,
}


def config_of(position_encoding="transformer_xl", **changes):
    """A small configuration; tables hold one row less than there are positions."""
    table = {"num_positions": M + T - 1} if position_encoding in ("shaw", "learned") else {}
    return ModelConfig(**{**SIZES, "position_encoding": position_encoding, **table, **changes})


def made(position_encoding="transformer_xl", dtype="float32", **changes):
    """A small model with large random weights."""
    model = TransformerXL(config_of(position_encoding, **changes), dtype=dtype)
    randomize_weights(model)
    return model


def token_ids(length, seed=0, vocabulary_size=V):
    return np.random.default_rng(seed).integers(0, vocabulary_size, (B, length)).astype("int32")


def score(model, tokens, memory, **kwargs):
    """Scores tokens[:, 1:] after tokens[:, :-1]."""
    return model.score(tokens[:, :-1], tokens[:, 1:], memory, **kwargs)


def filled_memory(model):
    """Memory of a row that has read 5 tokens, and of one that has read none."""
    tokens = token_ids(5, seed=9, vocabulary_size=model.config.vocabulary_size)
    _, memory = model(tokens, model.initial_memory(B))
    return memory.forget(ops.convert_to_tensor([False, True]))
