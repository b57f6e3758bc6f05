"""What a session writes, whatever the pieces it is asked for and the rows around it."""

import numpy as np
import pytest
import tensorflow as tf

from tests.generation.models import (
    RAGGED,
    expressive,
    greedy_by_reading_again,
    greedy_by_the_model,
    prompt,
    recurrent,
)
from tests.small_models import VOCABULARY_SIZE
from txl_tf.config.generation import SamplingConfig
from txl_tf.config.model import LSTMConfig, QRNNConfig
from txl_tf.generation import GenerationSession, generate, session as session_module
from txl_tf.generation.decoding import TOKENS_PER_CHECK
from txl_tf.inference import execution_plan
from txl_tf.samplers import GreedySampler, RandomSampler

GREEDY = GreedySampler()


def session(model, sampler=GREEDY, num_rows=3, **options):
    return GenerationSession(model, sampler, num_rows=num_rows, jit_compile=False, **options)


@pytest.fixture(scope="module")
def greedy(model):
    return session(model)


@pytest.mark.parametrize(
    "made",
    [
        lambda: expressive(position_encoding="sinusoidal"),
        lambda: expressive(position_encoding="learned", num_positions=9),
        lambda: recurrent(LSTMConfig),
        lambda: recurrent(QRNNConfig),
    ],
)
def test_rows_of_several_lengths_equal_each_row_alone(made):
    model = made()
    output, memory = generate(model, RAGGED, max_tokens=7, sampler=GREEDY)
    assert output.tolist() == [greedy_by_the_model(model, row, 7) for row in RAGGED]
    assert isinstance(memory, type(model.initial_memory(1)))


def test_pieces_make_the_same_text_as_all_at_once(model, monkeypatch):
    options = {"seed": 3, "repetition_penalty": 1.2, "frequency_penalty": 0.3}
    at_once = session(model, RandomSampler(), **options).write(prompt(7), max_tokens=14)
    monkeypatch.setattr(session_module, "CAPACITY", 3)  # so that memory takes over often
    writer = session(model, RandomSampler(), **options)
    pieces = [writer.write(prompt(7), max_tokens=1)]
    pieces += [writer.write(max_tokens=count) for count in (1, 4, 8)]
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), at_once)


def test_a_memory_of_the_model_or_of_a_text_before_is_continued(model):
    memory = model(prompt(5), model.initial_memory(3, 7))[1]
    first, after = generate(model, prompt(17), max_tokens=6, sampler=GREEDY, memory=memory)
    # The sixth token is the next prompt.
    second, _ = generate(model, first[:, -1:], max_tokens=6, sampler=GREEDY, memory=after)
    for row in range(3):
        states = tuple(each[row : row + 1] for each in memory.states)
        own = memory._replace(states=states, valid_length=memory.valid_length[row : row + 1])
        expected = greedy_by_the_model(model, prompt(17)[row], 12, own)
        assert [*first[row], *second[row]] == expected


@pytest.mark.parametrize("kind", ["keys and values", "recurrent"])
def test_a_row_ends_with_a_stop_token_and_continues_from_it(model, kind):
    model = recurrent(LSTMConfig) if kind == "recurrent" else model
    free = [greedy_by_the_model(model, row, 10) for row in RAGGED]
    stop = free[1][3]  # so the second row ends there, or before
    stopping = session(model, stop_token_ids=[stop])
    output = stopping.write(RAGGED, max_tokens=10)
    texts = [row[: row.index(stop) + 1] if stop in row else row for row in free]
    assert min(map(len, texts)) < 10
    assert output.tolist() == [[*text, *[-1] * (10 - len(text))] for text in texts]
    # Each row continues from its own end, also those that had ended long before the others.
    more = stopping.write([row[:3] for row in RAGGED], max_tokens=1)
    for row, text, further in zip(RAGGED, texts, more, strict=True):
        text = np.concatenate([row, text, row[:3]])
        assert further.tolist() == greedy_by_the_model(model, text, 1)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"repetition_penalty": 1.7},
        {"presence_penalty": -1.5, "logit_bias": {3: 2.5, 5: -100}},
        {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": 0.2},
    ],
    ids=str,
)
def test_text_penalties_and_bias_equal_full_passes_over_the_text_so_far(model, settings):
    writer = session(model, **settings)
    pieces = [writer.write(RAGGED, max_tokens=9), writer.write(max_tokens=9)]
    assert [each.dtype for each in pieces] == [np.int32] * 2
    output = np.concatenate(pieces, axis=1).tolist()
    assert output == greedy_by_reading_again(model, RAGGED, 18, settings)
    assert settings or len(np.unique(output)) > 3  # it is not one token over and over


def test_rounded_rows_end_and_continue_as_each_alone(model, monkeypatch):
    monkeypatch.setattr(execution_plan, "_FEWEST_ROUNDED_BYTES", 0)
    monkeypatch.setattr(session_module, "CAPACITY", 4)
    stop = greedy_by_the_model(model, RAGGED[1], 4)[-1]
    together = GenerationSession(model, GREEDY, num_rows=3, stop_token_ids=[stop])
    output = [together.write(RAGGED, max_tokens=10), together.write(max_tokens=6)]
    assert together.memory.keys[0].dtype == "float32"
    alone = GenerationSession(model, GREEDY, stop_token_ids=[stop])
    for number, row in enumerate(RAGGED):
        own = alone.sibling()
        pieces = [own.write([row], max_tokens=10), own.write(max_tokens=6)]
        for piece, of_row in zip(output, pieces, strict=True):
            np.testing.assert_array_equal(piece[number], of_row[0])
        for one, other in zip(together.memory.values, own.memory.values, strict=True):
            np.testing.assert_allclose(one[number], other[0], atol=0.05)
            assert (np.asarray(one).view(np.uint32) & 0xFFFF == 0).all()


@pytest.mark.slow
def test_compiled_text_is_the_same(model, greedy):
    compiled = GenerationSession(model, GREEDY, num_rows=3, jit_compile=True)
    output = greedy.sibling().write(RAGGED, max_tokens=9)
    np.testing.assert_array_equal(compiled.write(RAGGED, max_tokens=9), output)


def test_writing_ends_with_the_row_that_is_over_last(greedy):
    free = greedy.sibling().write(RAGGED, max_tokens=200)
    ends = np.array([5, 22, 11])

    def is_over(rows):
        return (rows >= 0).sum(axis=1) >= ends

    output = greedy.sibling().write(RAGGED, max_tokens=200, is_over=is_over)
    counts = (output >= 0).sum(axis=1)
    assert (counts == TOKENS_PER_CHECK * -(-ends // TOKENS_PER_CHECK)).all()
    for row, other, count in zip(output, free, counts, strict=True):
        assert row[:count].tolist() == other[:count].tolist()


def test_a_session_returns_to_a_mark_twice(model):
    writer, other = (session(model, repetition_penalty=1.3, num_rows=1) for _ in range(2))
    writer.read(RAGGED[:1])
    mark = writer.mark()
    for count in (2, 6):
        output = writer.write(max_tokens=9)[:, :count]
        writer.rewind(mark, output)
    expected = other.write([[*RAGGED[0], *output[0]]], max_tokens=5)
    np.testing.assert_array_equal(writer.write(max_tokens=5), expected)


def test_sessions_with_settings_of_their_own_are_compiled_once(model):
    first = session(model, sampler=None)
    for settings in ({"temperature": 0.0}, {"temperature": 0.8, "top_k": 5}, {"min_p": 0.1}):
        output = first.sibling(4, SamplingConfig(**settings)).write(RAGGED, max_tokens=8)
        expected = session(model, RandomSampler(**settings), seed=4).write(RAGGED, max_tokens=8)
        np.testing.assert_array_equal(output, expected)
    first.write(prompt(4), max_tokens=70)
    first.write(max_tokens=2)
    assert first._writer.experimental_get_tracing_count() == 1


def test_a_model_without_recurrence_sees_the_segment(model):
    alone = expressive(recurrence=False)
    for variable, other in zip(alone.weights, model.weights, strict=True):
        variable.assign(other)
    # The first five tokens see each other, as in training.
    output = session(alone).write(prompt(2), max_tokens=4).tolist()
    assert output == greedy_by_reading_again(model, prompt(2), 4, {})


def test_a_sampler_gets_logits_and_a_seed_of_its_own_for_every_token_and_row(model):
    calls = []

    def sampler(logits, seeds):
        tf.py_function(
            lambda *each: calls.append([part.numpy() for part in each]), (logits, seeds), []
        )
        return tf.zeros([2], tf.int32)

    generate(model, prompt(4, num_rows=2), max_tokens=3, sampler=sampler, seed=[9, 10])
    assert [logits.shape for logits, _ in calls] == [(2, VOCABULARY_SIZE)] * 3
    assert len({tuple(row) for _, seeds in calls for row in seeds}) == 6


def test_values_out_of_range_are_refused(model):
    memory, lstm = model.initial_memory(2), recurrent(LSTMConfig)
    for options, message in (
        ({"seed": 2**31}, "`seed` must be a 32-bit int, or 3, one per row"),
        ({"seed": [1, 2]}, "Received: seed=.1, 2."),
        ({"stop_token_ids": [VOCABULARY_SIZE]}, r"`stop_token_ids` must be in \[0, 13\)"),
        ({"excluded_token_ids": [-1]}, r"`excluded_token_ids` must be in \[0, 13\)"),
        ({"logit_bias": {VOCABULARY_SIZE: 1}}, r"`logit_bias` must be in \[0, 13\)"),
        ({"stop": "."}, "Unknown keys"),
        ({"memory": memory, "memory_length": 7}, "`memory` must be like KeyValueMemory"),
        ({"model": lstm, "memory": memory}, "`memory` must be like Memory"),
    ):
        with pytest.raises(ValueError, match=message):
            session(**{"model": model, **options})
    for prompt_ids, message in (
        (None, r"A new session needs `prompt_ids`\. Received: prompt_ids=None"),
        ([[1], [-1], [2**40]], r"`prompt_ids` must be in \[0, 13\)"),
        *((rows, "a vector of token ids per row") for rows in ([[1], []], [], [[[1]]])),
    ):
        with pytest.raises(ValueError, match=message):
            session(model).write(prompt_ids, max_tokens=1)
