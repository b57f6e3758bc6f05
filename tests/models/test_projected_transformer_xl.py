"""Memory of keys and values, against memory of hidden states."""

import numpy as np
import pytest
from keras import ops

from tests.layer_checks import needs_tensorflow, randomize_weights, tf
from tests.slow_case import slow_case
from txl_tf.config.model_config import ModelConfig
from txl_tf.models.projected_transformer_xl import ProjectedTransformerXL
from txl_tf.models.transformer_xl import TransformerXL

B, T, V = 2, 4, 11
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


def made_for(variant, memory_length):
    changes = VARIANTS[variant]
    if memory_length == 0 and "same length" in variant:
        changes = {**changes, "same_length": False}
    return made(**changes)


def tokens(length, seed=0):
    return np.random.default_rng(seed).integers(0, V, size=(B, length)).astype("int32")


def read(reader, text, lengths, memory_length):
    """Scores a text in segments of these lengths; returns `(B, sum(lengths))` nats."""
    memory, start, found = reader.initial_memory(B, memory_length), 0, []
    for length in lengths:
        stop = start + length
        nll, memory = reader.score(text[:, start:stop], text[:, start + 1 : stop + 1], memory)
        found.append(ops.convert_to_numpy(nll))
        start = stop
    return np.concatenate(found, axis=1), memory


@pytest.mark.parametrize("memory_length", [0, slow_case(3), 9])
@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_memory_of_hidden_states(variant, memory_length):
    model = made_for(variant, memory_length)
    lengths = (T, T, 1, 3, T)
    expected, memory = read(model, tokens(17), lengths, memory_length)
    found, projected_memory = read(
        ProjectedTransformerXL(model), tokens(17), lengths, memory_length
    )
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(projected_memory.valid_length, memory.valid_length)


@pytest.mark.parametrize("variant", ["plain", "pre norm", "shaw"])
def test_a_memory_can_be_projected_at_any_time(variant):
    model = made(**VARIANTS[variant])
    projected = ProjectedTransformerXL(model)
    _, memory = read(model, tokens(9), (T, T), 6)
    _, expected = read(projected, tokens(9), (T, T), 6)
    found = projected.project_memory(memory)
    np.testing.assert_array_equal(found.valid_length, expected.valid_length)
    pairs = zip(found[:2], expected[:2], strict=True)
    for one, other in (pair for both in pairs for pair in zip(*both, strict=True)):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("memory_length", [0, 3, 9])
@pytest.mark.parametrize("variant", ["plain", "same length", "shaw"])
def test_several_segments_at_once_are_several_segments(variant, memory_length):
    changes = {} if memory_length == 0 else VARIANTS[variant]
    projected = ProjectedTransformerXL(made(**changes))
    expected, last = read(projected, tokens(8 * T + 1), (T,) * 8, memory_length)
    memory, found = projected.initial_memory(B, memory_length), []
    for start, stop in [(0, 4 * T), (4 * T, 7 * T), (7 * T, 8 * T)]:
        text = tokens(8 * T + 1)
        nll, memory = projected.score(
            text[:, start:stop], text[:, start + 1 : stop + 1], memory, segment_length=T
        )
        found.append(ops.convert_to_numpy(nll))
    np.testing.assert_allclose(np.concatenate(found, axis=1), expected, rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(memory.valid_length, last.valid_length)


def test_position_keys_given_are_those_computed():
    projected = ProjectedTransformerXL(made())
    memory = projected.initial_memory(B)
    computed, _ = projected.log_probs(tokens(T), memory)
    given, _ = projected.log_probs(tokens(T), memory, projected.position_keys(6 + T))
    np.testing.assert_array_equal(given, computed)


def test_log_probs_and_hidden_states_are_the_models():
    model = made()
    expected, _ = model.log_probs(tokens(T), model.initial_memory(B))
    projected = ProjectedTransformerXL(model)
    found, _ = projected.log_probs(tokens(T), projected.initial_memory(B))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


def test_forgotten_rows_start_anew():
    projected = ProjectedTransformerXL(made())
    _, memory = read(projected, tokens(9), (T, T), 6)
    fresh, _ = projected.log_probs(tokens(T), projected.initial_memory(B))
    kept, _ = projected.log_probs(tokens(T), memory)
    mixed, _ = projected.log_probs(tokens(T), memory.forget(np.array([True, False])))
    np.testing.assert_allclose(mixed[0], fresh[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(mixed[1], kept[1])


@needs_tensorflow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_compiled_equals_eager(jit_compile):
    projected = ProjectedTransformerXL(made())
    _, memory = read(projected, tokens(9), (T, T), 6)
    step = tf.function(projected.score, jit_compile=jit_compile, autograph=False)
    expected, _ = projected.score(tokens(T), tokens(T, seed=1), memory)
    found, _ = step(tokens(T), tokens(T, seed=1), memory, projected.position_keys(6 + T))
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)


def test_scores_of_half_precision_are_close():
    model = made(dtype="mixed_bfloat16")
    expected, _ = read(model, tokens(9), (T, T), 6)
    found, _ = read(ProjectedTransformerXL(model), tokens(9), (T, T), 6)
    np.testing.assert_allclose(found, expected, atol=0.05)


@pytest.mark.parametrize("encoding", ["sinusoidal", "learned"])
def test_absolute_positions_are_refused(encoding):
    changes = {"num_positions": 10} if encoding == "learned" else {}
    model = made(position_encoding=encoding, **changes)
    with pytest.raises(ValueError, match=r"Only memory without positions.*Received: position_enc"):
        ProjectedTransformerXL(model)
