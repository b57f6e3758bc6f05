"""Reading token by token beside a memory, against the model that reads whole texts."""

import numpy as np
import pytest
from keras import ops

from tests.layer_checks import randomize_weights
from tests.slow_case import slow_case
from txl_tf.config.model_config import ModelConfig
from txl_tf.models.incremental_transformer_xl import IncrementalTransformerXL
from txl_tf.models.transformer_xl import TransformerXL

T, V = 4, 11
CONFIG = ModelConfig(
    vocabulary_size=V,
    num_layers=2,
    hidden_dim=6,
    num_heads=2,
    head_dim=3,
    intermediate_dim=10,
    segment_length=T,
    memory_length=6,
    dropout=0.0,
    # Normalising six nearly equal numbers by 1e-12 would magnify what rounding leaves.
    layer_norm_epsilon=1e-6,
)
VARIANTS = {
    "plain": {},
    "shared biases": {"share_attention_biases": True},
    "pre norm": {"pre_norm": True},
    "clamped": {"clamp_length": 3},
    "same length": {"same_length": True},
    "official same length": {"same_length": True, "same_length_keys": "memory"},
    "clusters": {"cutoffs": (3, 7), "division_factor": 2},
    "shaw": {"position_encoding": "shaw", "num_positions": 5},
}


def made(dtype="float32", **changes):
    model = TransformerXL(CONFIG.replace(**changes), dtype=dtype)
    randomize_weights(model)
    return model


def text(num_rows, length, seed=0):
    return np.random.default_rng(seed).integers(0, V, size=(num_rows, length)).astype("int32")


def int32(values):
    return ops.convert_to_tensor(values, dtype="int32")


def token_by_token(model, tokens, memory_length, capacity):
    """Log-probabilities `(B, T, V)`; memory takes over every `capacity` tokens."""
    incremental = IncrementalTransformerXL(model)
    num_rows = len(tokens)
    memory = incremental.initial_memory(num_rows, memory_length)
    constants = incremental.constants(num_rows, memory_length)
    found = []
    for start in range(0, tokens.shape[1], capacity):
        recent = incremental.initial_recent(num_rows, capacity)
        piece = tokens[:, start : start + capacity]
        for column in piece.T:
            log_probs, recent = incremental.step(int32(column), memory, recent, constants)
            found.append(ops.convert_to_numpy(log_probs))
        memory = incremental.append(memory, recent, int32(piece.shape[1]))
    return np.stack(found, axis=1), memory


def by_the_model(model, tokens, memory_length):
    """The same with the hidden states of memory, one token at a time."""
    memory, found = model.initial_memory(len(tokens), memory_length), []
    for column in tokens.T:
        log_probs, memory = model.log_probs(column[:, None], memory)
        found.append(ops.convert_to_numpy(log_probs)[:, 0])
    return np.stack(found, axis=1), memory


# Two rows are compared with distances in one way, three in another.
@pytest.mark.parametrize("num_rows", [slow_case(2), 3])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_reads_like_the_model(variant, num_rows):
    # Memory is filled more than twice over, and takes over when it is half full.
    model, tokens = made(**VARIANTS[variant]), text(num_rows, 8)
    expected, memory = by_the_model(model, tokens, 3)
    found, projected = token_by_token(model, tokens, 3, capacity=5)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    np.testing.assert_array_equal(projected.valid_length, memory.valid_length)


@pytest.mark.parametrize("variant", ["plain", "pre norm", "shaw", "clusters"])
def test_equals_one_pass_over_the_whole_text(variant):
    model, tokens = made(**VARIANTS[variant]), text(2, 12)
    expected, _ = model.log_probs(tokens, model.initial_memory(2, 0))
    found, _ = token_by_token(model, tokens, 12, capacity=5)
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("num_rows", [1, 3])
def test_without_memory_a_token_sees_itself_alone(num_rows):
    model, tokens = made(), text(num_rows, 5)
    expected, _ = by_the_model(model, tokens, 0)
    found, _ = token_by_token(model, tokens, 0, capacity=3)
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("memory_length", [0, 3, 9])
def test_texts_of_several_lengths_are_read_as_if_alone(memory_length):
    model, tokens = made(), text(3, 2 * T)
    incremental = IncrementalTransformerXL(model)
    memory = incremental.initial_memory(3, memory_length)
    lengths = np.array([[T, 3], [2, 0], [T, 1]])
    for start, of_rows in zip((0, T), lengths.T, strict=True):
        memory = incremental.read(tokens[:, start : start + T], int32(of_rows), memory)
    np.testing.assert_array_equal(memory.valid_length, np.minimum(lengths.sum(1), memory_length))
    for row, of_segments in enumerate(lengths):
        alone, start = incremental.initial_memory(1, memory_length), 0
        for length in of_segments[of_segments > 0]:
            piece = tokens[row : row + 1, start : start + length]
            alone, start = incremental.read(piece, int32(length), alone), start + length
        filled = int(alone.valid_length[0])
        for one, other in zip(memory.keys, alone.keys, strict=True):
            one, other = one[row, ..., memory_length - filled :], other[0, ..., -filled:]
            np.testing.assert_allclose(one, other[..., other.shape[-1] - filled :], atol=1e-5)


def test_rows_that_share_a_memory_read_as_if_each_had_its_own():
    model = made()
    incremental = IncrementalTransformerXL(model)
    memory = incremental.read(text(2, T), int32([T, 2]), incremental.initial_memory(2))
    own = memory._replace(
        keys=tuple(ops.repeat(each, 3, axis=0) for each in memory.keys),
        values=tuple(ops.repeat(each, 3, axis=0) for each in memory.values),
        valid_length=ops.repeat(memory.valid_length, 3),
    )
    constants = incremental.constants(6, 6)
    recents = [incremental.initial_recent(6, 4)] * 2
    for column in text(6, 3, seed=1).T:
        found, recents[0] = incremental.step(int32(column), memory, recents[0], constants)
        expected, recents[1] = incremental.step(int32(column), own, recents[1], constants)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_recent_rows_are_put_in_another_order():
    incremental = IncrementalTransformerXL(made())
    memory, constants = incremental.initial_memory(3), incremental.constants(3, 6)
    columns, order = text(3, 2).T, np.array([2, 2, 0])
    _, recent = incremental.step(
        int32(columns[0]), memory, incremental.initial_recent(3, 2), constants
    )
    found, _ = incremental.step(int32(columns[1]), memory, recent.select(int32(order)), constants)
    _, recent = incremental.step(
        int32(columns[0][order]), memory, incremental.initial_recent(3, 2), constants
    )
    expected, _ = incremental.step(int32(columns[1]), memory, recent, constants)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_half_precision_is_close():
    model, tokens = made(dtype="mixed_bfloat16"), text(2, 8)
    expected, _ = by_the_model(model, tokens, 5)
    found, memory = token_by_token(model, tokens, 5, capacity=3)
    np.testing.assert_allclose(found, expected, atol=0.1)
    assert memory.keys[0].dtype == "bfloat16"


@pytest.mark.parametrize("encoding", ["sinusoidal", "learned"])
def test_absolute_positions_are_refused(encoding):
    changes = {"num_positions": 10} if encoding == "learned" else {}
    with pytest.raises(ValueError, match=r"Only memory without positions"):
        IncrementalTransformerXL(made(position_encoding=encoding, **changes))
