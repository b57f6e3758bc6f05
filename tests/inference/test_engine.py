"""Every kind of memory and operator reads as the formulas of the paper say."""

import keras
import numpy as np
import pytest

from tests.inference.variants import (
    ON_CPU,
    RELATIVE,
    VARIANTS,
    B,
    T,
    V,
    assert_equal_memory,
    by_the_formulas,
    engine_of,
    int32,
    made,
    read,
    tokens,
)
from tests.layer_checks import randomize_weights
from tests.slow_case import slow_case
from txl_tf.config.model import LSTMConfig
from txl_tf.inference.engine import InferenceEngine
from txl_tf.models import create_model

CASES = [
    *(("hidden states", variant, 9) for variant in VARIANTS),
    *((operator, variant, 9) for operator in ON_CPU for variant in RELATIVE),
    *((kind, "plain", 0) for kind in ("hidden states", *ON_CPU)),
    *((operator, variant, 3) for operator in ON_CPU for variant in ("shaw", "same length")),
    # Each shape is a kernel of its own, which takes seconds to compile.
    *(slow_case("on chip", *each) for each in (("plain", 0), ("shared biases", 9), ("gates", 9))),
]


@pytest.mark.parametrize(("kind", "variant", "memory_length"), CASES)
def test_segments_score_as_by_the_formulas(kind, variant, memory_length):
    lengths = (T, T, 1, 3, T)
    expected, valid_length = by_the_formulas(variant, memory_length, lengths)
    if kind == "hidden states":
        engine = InferenceEngine(made(variant), memory_length, kind.replace(" ", "_"))
    else:
        engine = engine_of(made(variant), kind, memory_length)
    nats, memory = read(engine, tokens(17), lengths)
    np.testing.assert_allclose(nats, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(memory.valid_length, valid_length)


def test_memory_goes_from_model_and_operator_to_operator():
    for variant in ("plain", "gates", "shaw", "shaw two terms"):
        engines = [engine_of(made(variant), operator) for operator in ON_CPU]
        _, states = read(InferenceEngine(made(variant), keeps="hidden_states"), tokens(9), (T, T))
        memories = [read(engine, tokens(9), (T, T))[1] for engine in engines]
        for engine, memory in zip(engines, memories, strict=True):
            for other in (states, *memories):
                assert_equal_memory(engine.adopt(other), memory)


@pytest.mark.parametrize(
    ("variant", "memory_length"), [("plain", 9), ("plain", 0), ("official same length", 9)]
)
@pytest.mark.parametrize("operator", ON_CPU)
def test_several_segments_at_once_are_several_segments(variant, operator, memory_length):
    # Five segments are parts of two, two and one head by head; memory is filled on the way.
    engine, text = engine_of(made(variant), operator, memory_length), tokens(8 * T + 1)
    expected, last = read(engine, text, (T,) * 8)
    nats, memory = read(engine, text, (5 * T, 2 * T, T))
    np.testing.assert_allclose(nats, expected, rtol=2e-6, atol=2e-6)
    assert_equal_memory(memory, last)


@pytest.mark.parametrize("operator", ON_CPU)
def test_documents_are_kept_apart_as_by_the_model(operator):
    text = tokens(6 * T + 1)
    starts = np.random.default_rng(3).random((B, 6 * T)) < 0.15
    assert starts.any(axis=1).all()
    by_states = InferenceEngine(made(), keeps="hidden_states")
    expected, memory = read(by_states, text, (T,) * 6, document_starts=starts)
    for lengths in ((T,) * 6, (5 * T, T)):
        engine = engine_of(made(), operator)
        nats, own = read(engine, text, lengths, document_starts=starts)
        np.testing.assert_allclose(nats, expected, rtol=2e-6, atol=3e-6)
        np.testing.assert_array_equal(own.valid_length, memory.valid_length)


@pytest.mark.parametrize("memory_length", [0, 3, 9])
@pytest.mark.parametrize("keeps", ["keys_and_values", "hidden_states"])
def test_texts_of_several_lengths_are_read_as_if_alone(keeps, memory_length):
    text, engine = tokens(2 * T, num_rows=3), InferenceEngine(made(), memory_length, keeps)
    memory, lengths = engine.initial_memory(3), np.array([[T, 3], [2, 0], [T, 1]])
    for start, of_rows in zip((0, T), lengths.T, strict=True):
        _, memory = engine.read(text[:, start : start + T], memory, lengths=int32(of_rows))
    np.testing.assert_array_equal(memory.valid_length, np.minimum(lengths.sum(1), memory_length))
    for row, of_segments in enumerate(lengths):
        alone, start = engine.initial_memory(1), 0
        for length in of_segments[of_segments > 0]:
            _, alone = engine.read(text[row : row + 1, start : start + length], alone)
            start += length
        unfilled = memory_length - int(alone.valid_length[0])
        for one, other in zip(memory[-2], alone[-2], strict=True):  # values, or states
            one, other = one[row, ..., unfilled:, :], other[0, ..., unfilled:, :]
            np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("operator", [*ON_CPU, slow_case("on chip")])
def test_constants_change_nothing_and_forgotten_rows_begin_again(operator):
    engine = engine_of(made(), operator)
    first, memory = engine.read(tokens(T), engine.initial_memory(B))
    again, _ = engine.read(tokens(T), memory.forget(np.array([True, False])))
    further, _ = engine.read(tokens(T), memory, constants=engine.constants(T))
    np.testing.assert_allclose(again[0], first[0], rtol=1e-5, atol=2e-6)
    np.testing.assert_array_equal(again[1], further[1])


@pytest.mark.parametrize("operator", ["all heads", slow_case("on chip")])
def test_scores_of_half_precision_are_close(operator):
    expected, _ = by_the_formulas("plain", 6, (T, T))
    engine = engine_of(made(dtype="mixed_bfloat16"), operator)
    nats, memory = read(engine, tokens(9), (T, T))
    np.testing.assert_allclose(nats, expected, atol=0.1)
    assert memory.keys[0].dtype == "bfloat16"


def test_a_recurrent_model_is_read_with_its_own_memory():
    model = create_model(
        LSTMConfig(vocabulary_size=V, num_layers=2, hidden_dim=6, segment_length=T)
    )
    randomize_weights(model)
    engine, text = InferenceEngine(model), tokens(17)
    expected, memory = model.score(text[:, :-1], text[:, 1:], model.initial_memory(B))
    nats, own = read(engine, text, (16,))
    np.testing.assert_allclose(nats, expected, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(own.states[-1], memory.states[-1], rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"`document_starts` need .*type LSTMLanguageModel"):
        engine.read(tokens(T), memory, document_starts=np.zeros((B, T), bool))


def test_what_does_not_fit_is_refused():
    model, engine = made(), engine_of(made())
    memory, both = engine.initial_memory(B), {"document_starts": np.zeros((B, T), bool)}
    sinusoidal, ragged = InferenceEngine(made("sinusoidal")), {"lengths": int32([1, 2])}
    for call, message in (
        (
            lambda: engine.adopt(engine_of(model, memory_length=3).initial_memory(B)),
            r"must be like KeyValueMemory.*Received: memory=",
        ),
        (lambda: engine.adopt("memory"), "Received: memory=memory"),
        (lambda: InferenceEngine(model, keeps="all"), '`keeps` must be "auto"'),
        (
            lambda: InferenceEngine(made("learned"), keeps="keys_and_values"),
            "needs a model with `position_encoding`.*Received: position_encoding='learned'",
        ),
        (lambda: InferenceEngine(keras.layers.Identity()), "must be a language model, .*type Iden"),
        (lambda: engine.read(np.full((B, T), V), memory), rf"`token_ids` must be in \[0, {V}\)"),
        (lambda: engine.read(tokens(T, 3), memory), rf"memory of {B} rows, batch of 3$"),
        (lambda: engine.read(tokens(T), model.initial_memory(B)), "must be a `KeyValueMemory`"),
        (lambda: engine.read(tokens(T)[0], memory), r"tensor \(B, T\)\. Received: shape"),
        (lambda: engine.read(tokens(T), memory, **ragged, **both), "exclude each other"),
        (
            lambda: sinusoidal.read(tokens(T), sinusoidal.initial_memory(B), **ragged),
            "model with relative positions",
        ),
        (
            lambda: sinusoidal.read(tokens(9), sinusoidal.initial_memory(B), lengths=int32(9)),
            "at most one segment, 4 tokens. Received: 9 tokens",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()
