"""Memory of the kernel for TPUs, interpreted, against the memory of all heads.

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
    read,
    tokens,
)
from txl_tf.inference.engine import InferenceEngine


def assert_same_memory(memory, of_all_heads):
    """Compares what is filled in every row, with the heads side by side."""
    np.testing.assert_array_equal(memory.valid_length, of_all_heads.valid_length)
    filled = int(np.min(memory.valid_length))
    for part, order in ((0, (0, 3, 1, 2)), (1, (0, 2, 1, 3))):
        for one, other in zip(memory[part], of_all_heads[part], strict=True):
            other = np.transpose(other, order)
            other = np.reshape(other, [*other.shape[:2], -1])
            np.testing.assert_allclose(one[:, -filled:], other[:, -filled:], rtol=1e-5, atol=1e-6)


def test_rows_of_several_lengths_remember_as_by_all_heads():
    memories = []
    for operator in ("on chip", "all heads"):
        engine = engine_of(made(), operator)
        memory, lengths = engine.initial_memory(3), int32([16, 5, 2])
        memories.append(engine.read(tokens(16, num_rows=3), memory, lengths=lengths)[1])
    assert_same_memory(*memories)


def test_memory_is_taken_over_from_the_model_and_a_longer_memory():
    on_chip = engine_of(made("gates"), "on chip")
    _, states = read(InferenceEngine(made("gates"), keeps="hidden_states"), tokens(9), (T, T))
    memory = on_chip.adopt(states)
    assert memory.memory_length == on_chip.initial_memory(B).memory_length
    assert_same_memory(memory, engine_of(made("gates")).adopt(states))
    assert_equal_memory(on_chip.adopt(memory), memory)
    # As many places, of which fewer are read.
    assert np.all(engine_of(made("gates"), "on chip", 3).adopt(memory).valid_length == 3)


def test_memory_of_the_kernel_stays_with_it_and_of_another_length_is_refused():
    on_chip = engine_of(made(), "on chip")
    longer = engine_of(made(), "on chip", 200).initial_memory(B)
    for call, message in (
        (lambda: on_chip.adopt(longer), r"must be like .* 128, .*Received: .* 256"),
        (lambda: on_chip.steps.begin(on_chip.initial_memory(B)), "an engine with OnChip"),
        (lambda: engine_of(made()).adopt(longer), "must be like KeyValueMemory"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
