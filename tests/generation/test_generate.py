"""Text written with memory against text written by reading everything again each time."""

import numpy as np
import pytest
import tensorflow as tf

from tests.generation.models import expressive, prompt
from tests.toy_batches import VOCABULARY_SIZE
from txl_tf.generation import generate
from txl_tf.samplers import GreedySampler


@pytest.fixture(scope="module")
def model():
    return expressive()


def test_the_returned_memory_goes_on_where_the_text_stopped(model):
    prompt_ids = prompt(8)
    at_once, memory_at_once = generate(model, prompt_ids, max_tokens=10, sampler=GreedySampler())
    first, memory = generate(model, prompt_ids, max_tokens=5, sampler=GreedySampler())
    # 8 of the prompt and 4 of the text; the fifth is the next prompt.
    assert memory.valid_length.numpy().tolist() == [12] * 3
    second, memory = generate(
        model, first[:, -1:], max_tokens=5, sampler=GreedySampler(), memory=memory
    )
    np.testing.assert_array_equal(np.concatenate([first, second], axis=1), at_once)
    np.testing.assert_array_equal(memory.valid_length, memory_at_once.valid_length)
    for one, other in zip(memory.keys, memory_at_once.keys, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_the_sampler_gets_logits_and_a_seed_of_its_own_for_every_token_and_row(model):
    seen = []

    def sampler(logits, seed):
        def record(logits, seed):
            seen.append((logits.shape, seed.numpy().tolist()))

        tf.py_function(record, [logits, seed], [])
        return tf.zeros([2], tf.int32)

    generate(model, prompt(4, num_rows=2), max_tokens=3, sampler=sampler, seed=[9, 10])
    assert [shape for shape, _ in seen] == [(2, VOCABULARY_SIZE)] * 3
    assert len({tuple(row) for _, rows in seen for row in rows}) == 6


@pytest.mark.parametrize(
    ("prompt_ids", "max_tokens", "message"),
    [
        ([[1]], 0, "Received: max_tokens=0"),
        ([[1, -1]], 1, rf"must be in \[0, {VOCABULARY_SIZE}\)"),
        ([[1], [2**40]], 1, rf"must be in \[0, {VOCABULARY_SIZE}\)"),
        *[(each, 1, "a vector of token ids per row") for each in ([[1], []], [], [0], [[[1]]])],
    ],
)
def test_nothing_to_read_or_to_write_is_refused(model, prompt_ids, max_tokens, message):
    with pytest.raises(ValueError, match=message):
        generate(model, prompt_ids, max_tokens=max_tokens, sampler=GreedySampler())


def test_a_memory_of_other_rows_or_length_is_refused(model):
    memory = model.initial_memory(2)
    for num_rows, length, message in ((3, 40, "have 3 rows"), (2, 7, "be like KeyValueMemory")):
        with pytest.raises(ValueError, match=f"`memory` must.*{message}"):
            generate(model, prompt(4, num_rows), max_tokens=1, memory=memory, memory_length=length)
