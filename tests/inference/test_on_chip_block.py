"""Reading by the kernel for TPUs, interpreted, against the model and the batched kernel."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from tests.inference.variants import (
    B,
    T,
    assert_equal_memory,
    engine_of,
    int32,
    made,
    made_for,
    read,
    tokens,
)
from tests.slow_case import slow_case
from txl_tf.inference.engine import InferenceEngine

# Each shape is a kernel of its own, which takes seconds to compile.
OTHERS = ("shared biases", "pre norm", "clamped", "same length", "official same length")


def used(memory, length):
    """Keys and values of the tokens that are remembered, with heads apart."""
    num_unused = memory.memory_length - length
    return [np.asarray(each)[:, num_unused:] for each in (*memory.keys, *memory.values)]


def by_token(memory):
    """Those of a memory of the batched kernel, in the same order."""
    axes = [*([0, 3, 1, 2] for _ in memory.keys), *([0, 2, 1, 3] for _ in memory.values)]
    found = []
    for each, order in zip((*memory.keys, *memory.values), axes, strict=True):
        found.append(np.transpose(each, order))
    return [np.reshape(each, [*each.shape[:2], each.shape[2] * each.shape[3]]) for each in found]


def assert_same_memory(found, batched, atol=1e-6):
    np.testing.assert_array_equal(found.valid_length, batched.valid_length)
    pairs = zip(used(found, batched.memory_length), by_token(batched), strict=True)
    for one, other in pairs:
        first = batched.memory_length - np.min(batched.valid_length)
        np.testing.assert_allclose(one[:, first:], other[:, first:], rtol=1e-5, atol=atol)


@pytest.mark.parametrize(
    ("variant", "memory_length"),
    [
        slow_case("plain", 0),
        slow_case("official same length", 3),
        *(slow_case(name, 9) for name in OTHERS),
    ],
)
def test_equals_memory_of_hidden_states(variant, memory_length):
    model, lengths = made_for(variant, memory_length), (T, T, 1, 3, T)
    expected, memory = read(model, tokens(17), lengths, model.initial_memory(B, memory_length))
    engine = engine_of(model, "on_chip", memory_length)
    found, own_memory = read(engine, tokens(17), lengths, engine.initial_memory(B))
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=3e-6)
    np.testing.assert_array_equal(own_memory.valid_length, memory.valid_length)


@pytest.mark.parametrize(
    ("variant", "memory_length"),
    [slow_case("plain", 40), slow_case("official same length", 140)],
)
def test_segments_at_once_move_memory_on_as_segments_alone(variant, memory_length):
    """Of 32 tokens the kernel writes the next memory; 140 of them take two tiles."""
    model, text = made_for(variant, memory_length), tokens(6 * 32 + 1)
    engines = {
        kernel: InferenceEngine(model, memory_length, segment_length=16, plan=each.plan)
        for kernel in ("batched", "on_chip")
        if (each := engine_of(model, kernel))
    }
    batched, on_chip = engines.values()
    assert on_chip.initial_memory(B).memory_length >= max(128, memory_length)
    expected, remembered = read(batched, text, (16,) * 12, batched.initial_memory(B))
    found, memory = read(on_chip, text, (64, 64, 32, 32), on_chip.initial_memory(B))
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=3e-6)
    assert_same_memory(memory, remembered)


@pytest.mark.parametrize("lengths", [slow_case((T,) * 6), slow_case((5 * T, T))])
def test_documents_are_kept_apart_as_by_the_batched_kernel(lengths):
    model, text = made(same_length=True), tokens(6 * T + 1)
    starts = np.random.default_rng(3).random((B, 6 * T)) < 0.15
    assert starts.any(axis=1).all()
    results = {}
    for kernel in ("batched", "on_chip"):
        engine = engine_of(model, kernel)
        results[kernel] = read(
            engine, text, lengths, engine.initial_memory(B), document_starts=starts
        )
    np.testing.assert_allclose(results["on_chip"][0], results["batched"][0], rtol=2e-6, atol=3e-6)
    assert_same_memory(results["on_chip"][1], results["batched"][1])


def test_rows_of_several_lengths_remember_as_by_the_batched_kernel():
    model, text, memories = made(), tokens(16, num_rows=3), {}
    for kernel in ("batched", "on_chip"):
        engine = engine_of(model, kernel)
        _, memory = engine.read(text, engine.initial_memory(3), lengths=int32([16, 5, 2]))
        memories[kernel] = memory
    assert_same_memory(memories["on_chip"], memories["batched"])


def test_memory_is_taken_over_from_the_model():
    model = made(pre_norm=True)
    on_chip = engine_of(model, "on_chip")
    _, states = read(model, tokens(9), (T, T), model.initial_memory(B))
    adopted = on_chip.adopt(states)
    assert adopted.memory_length == on_chip.initial_memory(B).memory_length
    assert_same_memory(adopted, engine_of(model).adopt(states))
    assert_equal_memory(on_chip.adopt(adopted), adopted)


def test_memory_of_the_kernel_stays_with_it_and_of_another_length_is_refused():
    model = made()
    on_chip, batched = engine_of(model, "on_chip"), engine_of(model)
    longer = engine_of(model, "on_chip", 200).initial_memory(B)
    with pytest.raises(ValueError, match=r"must be of length 128\. Received: .* 256"):
        on_chip.adopt(longer)
    with pytest.raises(ValueError, match="Received: an engine with the kernel 'on_chip'"):
        on_chip.begin(on_chip.initial_memory(B))
    with pytest.raises(ValueError, match="stays with engines that have it"):
        batched.adopt(longer)


def test_an_engine_that_remembers_less_takes_no_more_from_as_many_places():
    model, text = made(), tokens(2 * T + 1)
    long = engine_of(model, "on_chip", 9)
    _, memory = read(long, text, (T, T), long.initial_memory(B))
    assert np.all(engine_of(model, "on_chip", 3).adopt(memory).valid_length == 3)


@pytest.mark.slow
def test_half_precision_is_close():
    model, text = made(dtype="mixed_bfloat16"), tokens(17)
    nats = {}
    for kernel in ("batched", "on_chip"):
        engine = engine_of(model, kernel)
        nats[kernel], memory = read(engine, text, (16,), engine.initial_memory(B))
    np.testing.assert_allclose(nats["on_chip"], nats["batched"], atol=0.05)
    assert memory.keys[0].dtype == "bfloat16"


@pytest.mark.slow
def test_constants_are_those_that_a_read_computes():
    model, text = made(clamp_length=3), tokens(16)
    engine = engine_of(model, "on_chip")
    memory = engine.initial_memory(B)
    found, _ = engine.read(text, memory, constants=engine.constants(16))
    expected, _ = engine.read(text, memory)
    np.testing.assert_array_equal(found, expected)
    # What a program for replicas takes as arguments.
    shapes = [each.shape for each in tf.nest.flatten(engine.constants(16))]
    assert shapes == [shapes[0]] * model.config.num_layers
    assert ops.shape(memory.keys[0])[1] < shapes[0][0]
