"""What a session writes, whatever the pieces it is asked for and the rows around it."""

import numpy as np
import pytest

from tests.generation.models import expressive, greedy_by_reading_again, prompt
from tests.toy_batches import VOCABULARY_SIZE
from txl_tf.config.generation import SamplingConfig, sample_seeds
from txl_tf.generation import GenerationSession
from txl_tf.generation import session as session_module
from txl_tf.generation.decoding import TOKENS_PER_CHECK
from txl_tf.samplers import GreedySampler, RandomSampler

GREEDY = GreedySampler()
RAGGED = [prompt(3, 1)[0], prompt(17, 1)[0], prompt(9, 1)[0]]


@pytest.fixture(scope="module")
def model():
    return expressive()


def session(model, sampler=GREEDY, num_rows=3, **options):
    return GenerationSession(model, sampler, num_rows=num_rows, jit_compile=False, **options)


@pytest.fixture(scope="module")
def greedy(model):
    return session(model)


# 5 tokens are a segment, 17 more than three segments.
@pytest.mark.parametrize("prompt_length", [5, 17])
def test_greedy_text_is_that_of_full_passes_over_the_text_so_far(model, greedy, prompt_length):
    written = greedy.sibling().write(prompt(prompt_length), max_tokens=8)
    assert (written.shape, written.dtype) == ((3, 8), np.int32)
    np.testing.assert_array_equal(written, greedy_by_reading_again(model, prompt(prompt_length), 8))
    assert len(np.unique(written)) > 3  # it is not one token over and over


def test_pieces_make_the_same_text_as_all_at_once(model):
    random = session(model, RandomSampler(), seed=3)
    at_once = random.sibling(3).write(prompt(7), max_tokens=12)
    pieces = [random.write(prompt(7), max_tokens=1)]
    pieces += [random.write(max_tokens=count) for count in (1, 4, 6)]
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), at_once)


def test_memory_that_takes_over_often_makes_the_same_text(model, monkeypatch):
    penalties = {"repetition_penalty": 1.2, "frequency_penalty": 0.3}
    expected = session(model, **penalties).write(prompt(7), max_tokens=14)
    monkeypatch.setattr(session_module, "CAPACITY", 3)
    found = session(model, **penalties).write(prompt(7), max_tokens=14)
    np.testing.assert_array_equal(found, expected)


def test_seeds_of_samples_differ_and_fit_32_bits():
    seeds = {each for seed in range(-50, 50) for each in sample_seeds(seed, 50)}
    assert len(seeds) == 5000 and all(-(2**31) <= each < 2**31 for each in seeds)


def test_memory_of_the_model_and_long_prompts_leave_what_fits(model):
    before, prompt_ids = prompt(5), prompt(17)
    memory = model(before, model.initial_memory(3, 7))[1]
    written = session(model, memory_length=7, memory=memory).write(prompt_ids, max_tokens=12)
    for piece in np.split(prompt_ids[:, :-1], [5, 10, 15], axis=1):
        _, memory = model(piece, memory)
    token, expected = prompt_ids[:, -1:], []
    for _ in range(12):
        log_probs, memory = model.log_probs(token, memory)
        token = np.argmax(log_probs, axis=-1)
        expected.append(token)
    np.testing.assert_array_equal(written, np.concatenate(expected, axis=1))


def test_a_row_ends_with_a_stop_token_and_goes_on_from_it(model, greedy):
    free = greedy.sibling().write(RAGGED, max_tokens=10)
    stop = free[1, 3]  # so the second row ends there, or before
    stopping = session(model, stop_token_ids=[stop])
    written = stopping.write(RAGGED, max_tokens=10)
    ends = [(row == stop).argmax() + 1 if stop in row else len(row) for row in free]
    assert min(ends) < 10
    for row, expected, end in zip(written, free, ends, strict=True):
        np.testing.assert_array_equal(row[:end], expected[:end])
        assert (row[end:] == -1).all()
    # Each row goes on from its own end, also those that had ended long before the others.
    more = stopping.write([row[:3] for row in RAGGED], max_tokens=1)
    for row, begun, further, end in zip(RAGGED, free, more, ends, strict=True):
        text = np.concatenate([row, begun[:end], row[:3]])[None]
        np.testing.assert_array_equal(further[None], greedy_by_reading_again(model, text, 1))


@pytest.mark.slow
def test_compiled_text_is_the_same(model, greedy):
    compiled = GenerationSession(model, GreedySampler(), num_rows=3, jit_compile=True)
    np.testing.assert_array_equal(
        compiled.write(RAGGED, max_tokens=9), greedy.sibling().write(RAGGED, max_tokens=9)
    )


PENALTIES = [
    {"repetition_penalty": 1.7},
    {"frequency_penalty": 0.9},
    {"presence_penalty": -1.5, "logit_bias": {3: 2.5, 5: -100}},
    {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": 0.2},
]


def greedy_by_the_formulas(model, row, num_tokens, settings):
    """Repetition as in CTRL, on tokens read and written; the others as OpenAI, on those written."""
    text, written = list(row), []
    bias = [settings.get("logit_bias", {}).get(token, 0) for token in range(VOCABULARY_SIZE)]
    names = ("repetition_penalty", "frequency_penalty", "presence_penalty")
    repetition, frequency, presence = (settings.get(name, name[0] == "r") for name in names)
    for _ in range(num_tokens):
        hidden, _ = model(np.array([text]), model.initial_memory(1, 0))
        logits = np.array(model.logits_of(hidden))[0, -1]
        for token in set(text):
            logits[token] *= repetition if logits[token] < 0 else 1 / repetition
        for token in set(written):
            logits[token] -= written.count(token) * frequency + presence
        written.append(int(np.argmax(logits + bias)))
        text.append(written[-1])
    return written


@pytest.mark.parametrize("settings", PENALTIES, ids=str)
def test_penalties_and_bias_are_those_of_the_formulas(model, settings):
    asked = session(model, **settings)
    found = np.concatenate([asked.write(RAGGED, max_tokens=9), asked.write(max_tokens=9)], axis=1)
    assert found.tolist() == [greedy_by_the_formulas(model, row, 18, settings) for row in RAGGED]


def test_writing_ends_with_the_row_that_is_over_last(model, greedy):
    free = greedy.sibling().write(RAGGED, max_tokens=200)
    pairs = [row[k : k + 2] for row, k in zip(free, (3, 20, 9), strict=True)]

    def ends(rows):
        return [
            next((k + 2 for k in range(len(row) - 1) if (row[k : k + 2] == pair).all()), 10**6)
            for row, pair in zip(rows, pairs, strict=True)
        ]

    stopped = greedy.sibling()
    written = stopped.write(RAGGED, max_tokens=200, is_over=lambda rows: np.less(ends(rows), 10**6))
    for row, other, end in zip(written, free, ends(free), strict=True):
        assert end <= (row >= 0).sum() < end + TOKENS_PER_CHECK
        assert row[:end].tolist() == other[:end].tolist()


def test_a_session_forgets_what_came_after_a_mark(model):
    asked, other = (session(model, repetition_penalty=1.3, num_rows=1) for _ in range(2))
    asked.read(RAGGED[:1])
    mark = asked.mark()
    written = asked.write(max_tokens=9)
    asked.rewind(mark, written[:, :4])
    text = np.concatenate([RAGGED[0], written[0, :4]])
    other.read([text])
    assert asked.write(max_tokens=5).tolist() == other.write(max_tokens=5).tolist()


def test_sessions_with_settings_of_their_own_are_compiled_once(model):
    first = session(model, sampler=None)
    for settings in ({"temperature": 0.0}, {"temperature": 0.8, "top_k": 5}, {"min_p": 0.1}):
        asked = SamplingConfig(**settings)
        written = first.sibling(4, asked).write(RAGGED, max_tokens=8)
        expected = session(model, RandomSampler(**settings), seed=4).write(RAGGED, max_tokens=8)
        np.testing.assert_array_equal(written, expected)
    first.write(prompt(4), max_tokens=70)
    first.write(max_tokens=2)
    assert first._writer.experimental_get_tracing_count() == 1


def test_a_model_without_recurrence_sees_the_segment(model):
    alone = expressive(recurrence=False)
    for variable, other in zip(alone.weights, model.weights, strict=True):
        variable.assign(other)
    # The first five tokens see each other, as in training.
    written = session(alone).write(prompt(2), max_tokens=4)
    np.testing.assert_array_equal(written, greedy_by_reading_again(model, prompt(2), 4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_rows": 0}, "`num_rows` must be positive. Received: num_rows=0"),
        ({"seed": 2**31}, "`seed` must be a 32-bit int, or 3, one per row"),
        ({"seed": [1, 2]}, "Received: seed=.1, 2."),
        ({"stop_token_ids": [VOCABULARY_SIZE]}, r"`stop_token_ids` must be in \[0, 13\)"),
        ({"excluded_token_ids": [-1]}, r"`excluded_token_ids` must be in \[0, 13\)"),
        ({"repetition_penalty": 0.5}, "`repetition_penalty` must be at least 1"),
        ({"logit_bias": {VOCABULARY_SIZE: 1}}, r"`logit_bias` must be in \[0, 13\)"),
        ({"logit_bias": {1: 101}}, "numbers from -100 to 100"),
        ({"stop": "."}, "Unknown keys"),
        ({"memory": "mine"}, "`memory` must be like KeyValueMemory"),
        ({}, r"A new session needs `prompt_ids`\. Received: prompt_ids=None"),
    ],
)
def test_values_out_of_range_are_refused(model, options, message):
    with pytest.raises(ValueError, match=message):
        session(model, **options).write(max_tokens=1)
