"""Reading by the kernel for TPUs, interpreted, against the model and the batched kernel.

`tests.tpu_kernels.reading_cases` has documents, several segments at once and long memories.
"""

import numpy as np
import pytest

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
    # Each shape is a kernel of its own, which takes seconds to compile.
    [slow_case("plain", 0), slow_case("shared biases", 9), slow_case("gates", 9)],
)
def test_equals_memory_of_hidden_states(variant, memory_length):
    model, lengths = made_for(variant, memory_length), (T, T, 1, 3, T)
    expected, memory = read(model, tokens(17), lengths, model.initial_memory(B, memory_length))
    engine = engine_of(model, "on chip", memory_length)
    found, own_memory = read(engine, tokens(17), lengths, engine.initial_memory(B))
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=3e-6)
    np.testing.assert_array_equal(own_memory.valid_length, memory.valid_length)


def test_rows_of_several_lengths_remember_as_by_the_batched_kernel():
    model, text, memories = made(), tokens(16, num_rows=3), {}
    for kernel in ("all heads", "on chip"):
        engine = engine_of(model, kernel)
        _, memory = engine.read(text, engine.initial_memory(3), lengths=int32([16, 5, 2]))
        memories[kernel] = memory
    assert_same_memory(memories["on chip"], memories["all heads"])


def test_memory_is_taken_over_from_the_model():
    model = made(pre_norm=True, residual_gate="gru")
    on_chip = engine_of(model, "on chip")
    _, states = read(model, tokens(9), (T, T), model.initial_memory(B))
    adopted = on_chip.adopt(states)
    assert adopted.memory_length == on_chip.initial_memory(B).memory_length
    assert_same_memory(adopted, engine_of(model).adopt(states))
    assert_equal_memory(on_chip.adopt(adopted), adopted)


def test_memory_of_the_kernel_stays_with_it_and_of_another_length_is_refused():
    model = made()
    on_chip, batched = engine_of(model, "on chip"), engine_of(model)
    longer = engine_of(model, "on chip", 200).initial_memory(B)
    with pytest.raises(ValueError, match=r"must be like .* 128, .*Received: .* 256"):
        on_chip.adopt(longer)
    with pytest.raises(ValueError, match="Received: an engine with the operator OnChip"):
        on_chip.begin(on_chip.initial_memory(B))
    with pytest.raises(ValueError, match="must be like KeyValueMemory"):
        batched.adopt(longer)


def test_an_engine_that_remembers_less_takes_no_more_from_as_many_places():
    model, text = made(), tokens(2 * T + 1)
    long = engine_of(model, "on chip", 9)
    _, memory = read(long, text, (T, T), long.initial_memory(B))
    assert np.all(engine_of(model, "on chip", 3).adopt(memory).valid_length == 3)
