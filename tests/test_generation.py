"""Text written with memory against text written by reading everything again each time."""

import numpy as np
import pytest
import tensorflow as tf

from tests.toy_batches import VOCABULARY_SIZE, toy_experiment, weight_of
from txl_tf.generation import TokenStream, generate
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.samplers import GreedySampler, RandomSampler

# Memory for all that the tests read and write; segments of 5.
CONFIG = toy_experiment(
    model={
        "num_layers": 2,
        "hidden_dim": 16,
        "head_dim": 8,
        "intermediate_dim": 32,
        "memory_length": 40,
    }
).model


@pytest.fixture(scope="module")
def model():
    """A model whose next token depends on the text, and is not always the same one."""
    generator = np.random.default_rng(2)
    model = TransformerXL(CONFIG)
    for variable in sorted(model.weights, key=lambda variable: variable.path):
        if len(variable.shape) > 1:
            variable.assign(generator.normal(size=variable.shape))
    log_probs, _ = model.log_probs(prompt(30, num_rows=8), model.initial_memory(8))
    weight_of(model, "softmax/bias").assign(-np.mean(log_probs, axis=(0, 1)))
    return model


def prompt(length, num_rows=3):
    return np.random.default_rng(length).integers(0, VOCABULARY_SIZE, size=(num_rows, length))


def greedy_by_reading_again(model, prompt_ids, num_tokens):
    """The most probable token after the whole text so far, without any memory."""
    text = prompt_ids
    for _ in range(num_tokens):
        log_probs, _ = model.log_probs(text, model.initial_memory(len(text), 0))
        text = np.concatenate([text, np.argmax(log_probs[:, -1:], axis=-1)], axis=1)
    return text[:, prompt_ids.shape[1] :]


# 5 tokens are a segment, 6 one token more, 17 more than three segments.
@pytest.mark.parametrize("prompt_length", [1, 5, 6, 17])
def test_greedy_text_is_that_of_full_passes_over_the_text_so_far(model, prompt_length):
    prompt_ids = prompt(prompt_length)
    written, _ = generate(model, prompt_ids, num_tokens=8, sampler=GreedySampler())
    assert (written.shape, written.dtype) == ((3, 8), np.int32)
    np.testing.assert_array_equal(written, greedy_by_reading_again(model, prompt_ids, 8))


def test_the_texts_of_these_tests_are_not_one_token_over_and_over(model):
    written, _ = generate(model, prompt(17), num_tokens=8, sampler=GreedySampler())
    assert len(np.unique(written)) > 3


def test_rows_do_not_depend_on_each_other(model):
    prompt_ids = prompt(7)
    together, _ = generate(model, prompt_ids, num_tokens=6, sampler=GreedySampler())
    alone, _ = generate(model, prompt_ids[1:2], num_tokens=6, sampler=GreedySampler())
    np.testing.assert_array_equal(together[1:2], alone)


def test_the_same_seed_writes_the_same_text_and_another_seed_another(model):
    def written(seed):
        return generate(model, prompt(4), num_tokens=12, sampler=RandomSampler(), seed=seed)[0]

    np.testing.assert_array_equal(written(5), written(5))
    assert np.mean(written(5) != written(6)) > 0.2


def test_the_returned_memory_goes_on_where_the_text_stopped(model):
    prompt_ids = prompt(8)
    at_once, memory_at_once = generate(model, prompt_ids, num_tokens=10, sampler=GreedySampler())
    first, memory = generate(model, prompt_ids, num_tokens=5, sampler=GreedySampler())
    # 8 of the prompt and 4 of the text; the fifth is the next prompt.
    assert memory.valid_length.numpy().tolist() == [12] * 3
    second, memory = generate(
        model, first[:, -1:], num_tokens=5, sampler=GreedySampler(), memory=memory
    )
    np.testing.assert_array_equal(np.concatenate([first, second], axis=1), at_once)
    np.testing.assert_array_equal(memory.valid_length, memory_at_once.valid_length)
    for one, other in zip(memory.states, memory_at_once.states, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_memory_before_the_prompt_is_read(model):
    before, prompt_ids = prompt(6), prompt(3)
    _, memory = model(before, model.initial_memory(3))
    written, _ = generate(model, prompt_ids, num_tokens=5, sampler=GreedySampler(), memory=memory)
    whole = np.concatenate([before, prompt_ids], axis=1)
    np.testing.assert_array_equal(written, greedy_by_reading_again(model, whole, 5))


def test_a_stream_writes_one_token_per_row_at_a_time(model):
    prompt_ids = prompt(4)
    stream = TokenStream(model, prompt_ids, sampler=GreedySampler())
    columns = [next(stream) for _ in range(3)]
    assert iter(stream) is stream
    written, _ = generate(model, prompt_ids, num_tokens=3, sampler=GreedySampler())
    np.testing.assert_array_equal(np.stack(columns, axis=1), written)
    assert stream.memory.valid_length.numpy().tolist() == [6] * 3


def test_the_sampler_gets_logits_and_a_seed_of_its_own_for_every_token(model):
    seen = []

    def sampler(logits, seed):
        def record(logits, seed):
            seen.append((logits.shape, seed.numpy().tolist()))

        tf.py_function(record, [logits, seed], [])
        return tf.zeros([2], tf.int32)

    generate(model, prompt(4, num_rows=2), num_tokens=3, sampler=sampler, seed=9)
    assert [shape for shape, _ in seen] == [(2, VOCABULARY_SIZE)] * 3
    assert [seed for _, seed in seen] == [[9, 0], [9, 1], [9, 2]]


@pytest.mark.parametrize("num_tokens", [0, -1])
def test_no_tokens_cannot_be_asked_for(model, num_tokens):
    with pytest.raises(ValueError, match=f"Received: num_tokens={num_tokens}"):
        generate(model, prompt(4), num_tokens=num_tokens, sampler=GreedySampler())


@pytest.mark.parametrize("shape", [(1, 0), (0, 3), (4,), (1, 2, 3)])
def test_a_prompt_without_tokens_is_refused(model, shape):
    with pytest.raises(ValueError, match="at least one token in every row"):
        generate(model, np.zeros(shape, "int32"), num_tokens=1, sampler=GreedySampler())


@pytest.mark.parametrize("wrong", [-1, VOCABULARY_SIZE, 2**31 - 1, 2**40])
def test_ids_out_of_range_are_refused(model, wrong):
    prompt_ids = prompt(4)
    prompt_ids[1, 2] = wrong
    with pytest.raises(ValueError, match=rf"must be in \[0, {VOCABULARY_SIZE}\)"):
        generate(model, prompt_ids, num_tokens=1, sampler=GreedySampler())
