"""Small models of all variants."""

import functools
import itertools

import numpy as np
from keras import ops

from tests.layer_checks import randomize_weights
from tests.reference import max_difference
from txl_tf.config.model import LEARNED_ENCODINGS, ModelConfig
from txl_tf.models.transformer_xl import TransformerXL

B, T, M, V = 2, 4, 6, 11
ENCODINGS = ["transformer_xl", "shaw", "shaw_two_terms", "sinusoidal", "learned"]
COMBINATIONS = [
    combination
    for combination in itertools.product(ENCODINGS, [True, False], [False, True])
    # Pre norm is the same code for every encoding, and "shaw_two_terms" has the path of "shaw".
    if (combination[0] != "shaw_two_terms" or combination[1])
    and (not combination[2] or combination[:2] in (("transformer_xl", True), ("learned", False)))
]
"""Position encoding, recurrence, pre norm."""

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
    table = {"num_positions": M + T - 1} if position_encoding in LEARNED_ENCODINGS else {}
    return ModelConfig(**{**SIZES, "position_encoding": position_encoding, **table, **changes})


def made(position_encoding="transformer_xl", dtype="float32", **changes):
    """A small model with large random weights."""
    model = TransformerXL(config_of(position_encoding, **changes), dtype=dtype)
    randomize_weights(model)
    return model


shared = functools.cache(made)
"""The same for tests that do not change the model."""


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


def assert_segments_match(model, oracle):
    """Compares scores, hidden states and memory of three segments, in which the memory fills.

    `oracle(model, inputs, targets, states, valid_length)` returns scores, hidden states, states and
    valid lengths.
    """
    memory = model.initial_memory(B)
    states = [ops.convert_to_numpy(state) for state in memory.states]
    valid_length = [0] * B
    stream = token_ids(3 * T + 1, vocabulary_size=model.config.vocabulary_size)
    for start in range(0, 3 * T, T):
        inputs, targets = stream[:, start : start + T], stream[:, start + 1 : start + T + 1]
        hidden, _ = model(inputs, memory)
        nll, memory = model.score(inputs, targets, memory)
        expected_nll, expected_hidden, states, valid_length = oracle(
            model, inputs, targets, states, valid_length
        )
        assert max_difference(nll, expected_nll) <= 1e-5
        assert max_difference(hidden, expected_hidden) <= 1e-5
        for state, expected_state in zip(memory.states, states, strict=True):
            assert max_difference(state, expected_state) <= 1e-5
        assert ops.convert_to_numpy(memory.valid_length).tolist() == valid_length
