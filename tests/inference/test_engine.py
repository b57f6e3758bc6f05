"""The engine that reads segments, against the model with its own memory."""

import functools

import keras
import numpy as np
import pytest

from tests.inference.variants import (
    ON_CPU,
    VARIANTS,
    B,
    T,
    V,
    assert_equal_memory,
    engine_of,
    int32,
    made,
    made_for,
    read,
    tokens,
)
from tests.layer_checks import randomize_weights, tf
from tests.slow_case import slow_case
from txl_tf.config.model import LSTMConfig
from txl_tf.inference.engine import InferenceEngine
from txl_tf.models import create_model


@functools.cache
def read_by_the_model(variant, memory_length, lengths):
    model = made_for(variant, memory_length)
    return read(model, tokens(17), lengths, model.initial_memory(B, memory_length))


@pytest.mark.parametrize(
    ("variant", "memory_length"),
    [*((name, 9) for name in VARIANTS), ("plain", 0), ("official same length", 3), ("shaw", 3)],
)
@pytest.mark.parametrize("operator", ON_CPU)
def test_equals_memory_of_hidden_states(variant, operator, memory_length):
    model, lengths = made_for(variant, memory_length), (T, T, 1, 3, T)
    expected, memory = read_by_the_model(variant, memory_length, lengths)
    engine = engine_of(model, operator, memory_length)
    found, own_memory = read(engine, tokens(17), lengths, engine.initial_memory(B))
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=3e-6)
    np.testing.assert_array_equal(own_memory.valid_length, memory.valid_length)


@pytest.mark.parametrize("variant", ["plain", "gates", "shaw", "shaw two terms"])
def test_memory_goes_from_model_and_kernel_to_kernel(variant):
    model = made(**VARIANTS[variant])
    engines = {operator: engine_of(model, operator) for operator in ON_CPU}
    _, states = read(model, tokens(9), (T, T), model.initial_memory(B))
    read_by = {
        operator: read(engine, tokens(9), (T, T), engine.initial_memory(B))[1]
        for operator, engine in engines.items()
    }
    for operator, engine in engines.items():
        assert_equal_memory(engine.adopt(states), read_by[operator])
        for other in ON_CPU:
            assert_equal_memory(engine.adopt(read_by[other]), read_by[operator])


@pytest.mark.parametrize(
    ("variant", "memory_length"),
    [("plain", 9), ("plain", 0), ("same length", 9), ("official same length", 9), ("shaw", 9)],
)
@pytest.mark.parametrize("operator", ON_CPU)
def test_several_segments_at_once_are_several_segments(variant, operator, memory_length):
    # Five segments are parts of two, two and one head by head; memory is filled on the way.
    engine = engine_of(made_for(variant, memory_length), operator, memory_length)
    text = tokens(8 * T + 1)
    expected, last = read(engine, text, (T,) * 8, engine.initial_memory(B))
    found, memory = read(engine, text, (5 * T, 2 * T, T), engine.initial_memory(B))
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)
    assert_equal_memory(memory, last)


@pytest.mark.parametrize("operator", ON_CPU)
def test_documents_are_kept_apart_as_by_the_model(operator):
    model, text = made(), tokens(6 * T + 1)
    starts = np.random.default_rng(3).random((B, 6 * T)) < 0.15
    assert starts.any(axis=1).all()
    memory, expected = model.initial_memory(B), []
    for first in range(0, 6 * T, T):
        hidden, memory = model(
            text[:, first : first + T], memory, document_starts=starts[:, first : first + T]
        )
        targets = text[:, first + 1 : first + T + 1]
        expected.append(model.negative_log_likelihood(hidden, targets))
    engine = engine_of(model, operator)
    for lengths in ((T,) * 6, (5 * T, T)):
        found, own = read(engine, text, lengths, engine.initial_memory(B), document_starts=starts)
        np.testing.assert_allclose(found, np.concatenate(expected, axis=1), rtol=2e-6, atol=3e-6)
        np.testing.assert_array_equal(own.valid_length, memory.valid_length)


@pytest.mark.parametrize("memory_length", [0, 3, 9])
@pytest.mark.parametrize("keeps", ["keys_and_values", "hidden_states"])
def test_texts_of_several_lengths_are_read_as_if_alone(keeps, memory_length):
    model, text = made(), tokens(2 * T, num_rows=3)
    engine = InferenceEngine(model, memory_length, keeps)
    memory = engine.initial_memory(3)
    lengths = np.array([[T, 3], [2, 0], [T, 1]])
    for start, of_rows in zip((0, T), lengths.T, strict=True):
        _, memory = engine.read(text[:, start : start + T], memory, lengths=int32(of_rows))
    np.testing.assert_array_equal(memory.valid_length, np.minimum(lengths.sum(1), memory_length))
    for row, of_segments in enumerate(lengths):
        alone, start = engine.initial_memory(1), 0
        for length in of_segments[of_segments > 0]:
            piece = text[row : row + 1, start : start + length]
            _, alone = engine.read(piece, alone, lengths=int32(length))
            start += length
        unfilled = memory_length - int(alone.valid_length[0])
        for one, other in zip(memory[-2], alone[-2], strict=True):  # values, or states
            one, other = one[row, ..., unfilled:, :], other[0, ..., unfilled:, :]
            np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("operator", [*ON_CPU, slow_case("on chip")])
def test_constants_given_are_those_computed(operator):
    engine = engine_of(made(), operator)
    computed, _ = engine.read(tokens(3 * T), engine.initial_memory(B))
    given, _ = engine.read(
        tokens(3 * T), engine.initial_memory(B), constants=engine.constants(3 * T)
    )
    np.testing.assert_array_equal(given, computed)


@pytest.mark.parametrize("operator", ON_CPU)
def test_forgotten_rows_start_anew(operator):
    engine = engine_of(made(), operator)
    _, memory = read(engine, tokens(9), (T, T), engine.initial_memory(B))
    fresh, _ = engine.read(tokens(T), engine.initial_memory(B))
    kept, _ = engine.read(tokens(T), memory)
    mixed, _ = engine.read(tokens(T), memory.forget(np.array([True, False])))
    np.testing.assert_allclose(mixed[0], fresh[0], rtol=1e-5, atol=2e-6)
    np.testing.assert_array_equal(mixed[1], kept[1])


@pytest.mark.parametrize("jit_compile", [False, slow_case(True)])
@pytest.mark.parametrize("operator", ON_CPU)
def test_compiled_equals_eager(operator, jit_compile):
    engine = engine_of(made(), operator)
    _, memory = read(engine, tokens(9), (T, T), engine.initial_memory(B))
    step = tf.function(engine.score, jit_compile=jit_compile, autograph=False)
    text = tokens(3 * T + 1, seed=1)
    expected, _ = engine.score(text[:, :-1], text[:, 1:], memory)
    found, _ = step(text[:, :-1], text[:, 1:], memory, constants=engine.constants(3 * T))
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("operator", ["all heads", slow_case("on chip")])
def test_scores_of_half_precision_are_close(operator):
    model = made(dtype="mixed_bfloat16")
    expected, _ = read(model, tokens(9), (T, T), model.initial_memory(B))
    engine = engine_of(model, operator)
    found, memory = read(engine, tokens(9), (T, T), engine.initial_memory(B))
    np.testing.assert_allclose(found, expected, atol=0.05)
    assert memory.keys[0].dtype == "bfloat16"


@pytest.mark.parametrize("kind", ["sinusoidal", "learned", "lstm"])
def test_other_memories_are_those_of_the_model(kind):
    if kind == "lstm":
        model = create_model(
            LSTMConfig(vocabulary_size=V, num_layers=2, hidden_dim=6, segment_length=T)
        )
        randomize_weights(model)
    else:
        changes = {"num_positions": 10} if kind == "learned" else {}
        model = made(position_encoding=kind, **changes)
    expected, memory = read(model, tokens(17), (T,) * 4, model.initial_memory(B))
    engine = InferenceEngine(model)
    assert engine.keeps_states
    found, own = engine.score(tokens(17)[:, :16], tokens(17)[:, 1:], engine.initial_memory(B))
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(own.states[-1], memory.states[-1], rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="model with relative positions"):
        engine.read(tokens(T), engine.initial_memory(B), lengths=int32([1, 2]))


@pytest.mark.parametrize("encoding", ["sinusoidal", "learned"])
def test_absolute_positions_have_no_keys_and_values(encoding):
    changes = {"num_positions": 10} if encoding == "learned" else {}
    model = made(position_encoding=encoding, **changes)
    with pytest.raises(
        ValueError, match=r"needs a model with `position_encoding`.*Received: position_enc"
    ):
        InferenceEngine(model, keeps="keys_and_values")


def test_what_does_not_fit_is_refused():
    model = made()
    engine = engine_of(model)
    with pytest.raises(ValueError, match=r"must be like KeyValueMemory.*Received: memory="):
        engine.adopt(engine_of(model, memory_length=3).initial_memory(B))
    with pytest.raises(ValueError, match="Received: memory=memory"):
        engine.adopt("memory")
    with pytest.raises(ValueError, match='`keeps` must be "auto"'):
        InferenceEngine(model, keeps="all")
    with pytest.raises(ValueError, match=rf"`token_ids` must be in \[0, {V}\)"):
        engine.read(np.full((B, T), V), engine.initial_memory(B))
    with pytest.raises(ValueError, match=rf"memory of {B + 1} rows, batch of {B}$"):
        engine.read(tokens(T), engine.initial_memory(B + 1))
    with pytest.raises(ValueError, match="`memory` must be a `KeyValueMemory`"):
        engine.read(tokens(T), model.initial_memory(B))
    with pytest.raises(ValueError, match=r"tensor \(B, T\)\. Received: shape"):
        engine.read(tokens(T)[0], engine.initial_memory(1))
    with pytest.raises(
        ValueError, match=r"must be a language model, .*Received: model of type Iden"
    ):
        InferenceEngine(keras.layers.Identity())
    with pytest.raises(ValueError, match="exclude each other"):
        engine.read(
            tokens(T),
            engine.initial_memory(B),
            lengths=int32([1, 2]),
            document_starts=np.zeros((B, T), bool),
        )
