"""Every kind of memory and operator reads as the formulas of the paper say.

`tests.tpu_kernels.reading_cases` has documents, several segments at once and long memories for the
kernel for TPUs, which is interpreted here.
"""

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
def test_segments_are_scored_as_the_formulas_say(kind, variant, memory_length):
    lengths = (T, T, 1, 3, T)
    expected, valid_length = by_the_formulas(variant, memory_length, lengths)
    for dtype, atol in (("float32", 1e-5), ("mixed_bfloat16", 0.2)):
        model = made(variant, dtype)
        if kind == "hidden states":
            engine = InferenceEngine(model, memory_length, keeps_states=True)
        else:
            engine = engine_of(model, kind, memory_length)
        nats, memory = read(engine, tokens(17), lengths)
        np.testing.assert_allclose(nats, expected, rtol=1e-5, atol=atol)
        np.testing.assert_array_equal(memory.valid_length, valid_length)
        assert memory[0][0].dtype == model.compute_dtype


def test_memory_goes_from_model_and_operator_to_operator():
    for variant in ("plain", "gates", "shaw", "shaw two terms"):
        engines = [engine_of(made(variant), operator) for operator in ON_CPU]
        _, states = read(InferenceEngine(made(variant), keeps_states=True), tokens(9), (T, T))
        memories = [read(engine, tokens(9), (T, T))[1] for engine in engines]
        for engine, memory in zip(engines, memories, strict=True):
            for other in (states, *memories):
                assert_equal_memory(engine.adopt(other), memory)


@pytest.mark.parametrize(
    ("variant", "memory_length"), [("plain", 9), ("plain", 0), ("official same length", 9)]
)
@pytest.mark.parametrize("operator", ON_CPU)
def test_several_segments_at_once_and_documents_match_the_model(variant, operator, memory_length):
    # Five segments are parts of two, two and one head by head; memory is filled on the way.
    text, engine = tokens(8 * T + 1), engine_of(made(variant), operator, memory_length)
    by_states = InferenceEngine(made(variant), memory_length, keeps_states=True)
    for starts in ({}, {"document_starts": np.random.default_rng(3).random((B, 8 * T)) < 0.15}):
        expected, memory = read(by_states, text, (T,) * 8, **starts)
        nats, own = read(engine, text, (5 * T, 2 * T, T), **starts)
        np.testing.assert_allclose(nats, expected, rtol=2e-6, atol=3e-6)
        np.testing.assert_array_equal(own.valid_length, memory.valid_length)


@pytest.mark.parametrize("memory_length", [0, 3, 9])
@pytest.mark.parametrize(
    ("keeps_states", "variant"),
    [(False, "plain"), (True, "plain"), (False, "sinusoidal"), (False, "learned")],
)
def test_texts_of_several_lengths_are_read_as_if_alone(keeps_states, variant, memory_length):
    text = tokens(2 * T, num_rows=3)
    engine = InferenceEngine(made(variant), memory_length, keeps_states)
    memory, lengths = engine.initial_memory(3), np.array([[T, 3], [2, 0], [T, 1]])
    for start, of_rows in zip((0, T), lengths.T, strict=True):
        _, memory = engine.read(text[:, start : start + T], memory, lengths=int32(of_rows))
    np.testing.assert_array_equal(memory.valid_length, np.minimum(lengths.sum(1), memory_length))
    for row, of_segments in enumerate(lengths):
        alone = engine.initial_memory(1)
        for start, length in zip((0, T), of_segments, strict=True):
            segment = text[row : row + 1, start : start + T]
            _, alone = engine.read(segment, alone, lengths=int32(length))
        unfilled = memory_length - int(alone.valid_length[0])
        for one, other in zip(memory[-2], alone[-2], strict=True):  # values, or states
            one, other = one[row, ..., unfilled:, :], other[0, ..., unfilled:, :]
            np.testing.assert_allclose(one, other, atol=1e-5)


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


def assert_same_memory(memory, of_all_heads):
    """Compares the positions that every row has filled, with the heads side by side."""
    np.testing.assert_array_equal(memory.valid_length, of_all_heads.valid_length)
    filled = int(np.min(memory.valid_length))
    for part, order in ((0, (0, 3, 1, 2)), (1, (0, 2, 1, 3))):
        for one, other in zip(memory[part], of_all_heads[part], strict=True):
            other = np.transpose(other, order)[:, -filled:]
            other = np.reshape(other, [len(other), filled, -1])
            np.testing.assert_allclose(one[:, -filled:], other, rtol=1e-5, atol=1e-6)


def test_the_memory_of_the_kernel_matches_plain_operations():
    engines = on_chip, all_heads = engine_of(made("gates"), "on chip"), engine_of(made("gates"))
    memories = [
        engine.read(tokens(16, 3), engine.initial_memory(3), lengths=int32([16, 5, 2]))[1]
        for engine in engines
    ]
    assert_same_memory(*memories)
    _, states = read(InferenceEngine(made("gates"), keeps_states=True), tokens(9), (T, T))
    memory = on_chip.adopt(states)
    assert_same_memory(memory, all_heads.adopt(states))
    assert_equal_memory(on_chip.adopt(memory), memory)
    # As many positions, but fewer are read.
    assert np.all(engine_of(made("gates"), "on chip", 3).adopt(memory).valid_length == 3)


def test_what_does_not_fit_is_refused():
    engine, sinusoidal = engine_of(made()), InferenceEngine(made("sinusoidal"))
    memory, states = engine.initial_memory(B), sinusoidal.initial_memory(B)
    shorter, on_chip = (
        engine_of(made(), memory_length=3).initial_memory(B),
        engine_of(made(), "on chip"),
    )
    longer = engine_of(made(), "on chip", 200).initial_memory(B)
    for call, message in (
        (lambda: on_chip.adopt(longer), r"must be like .* 128, .*Received: .* 256"),
        (lambda: engine.adopt(longer), "must be like KeyValueMemory"),
        (lambda: engine.adopt(shorter), r"must be like KeyValueMemory.*Received: memory="),
        (lambda: engine.read(tokens(T, 3), memory), rf"memory of {B} rows, batch of 3$"),
        (lambda: engine.read(tokens(T), states), "must be a `KeyValueMemory`"),
        (lambda: sinusoidal.read(tokens(9), states, lengths=int32([9, 2])), "Received: 9 tokens$"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
