"""Answers that continue one reading of their prompt: the same numbers as read one by one."""

import numpy as np
import pytest

import txl_tf
from tests.small_models import small_config, with_drawn_weights
from txl_tf.config.model import LSTMConfig
from txl_tf.errors import NonFiniteError
from txl_tf.evaluation.answer_scorer import AnswerScorer
from txl_tf.models.language_model import create_model
from txl_tf.samplers import GreedySampler

T, M, A, V = 6, 8, 3, 11
P = 4 * T - A + 1


@pytest.fixture(scope="module")
def model():
    return with_drawn_weights(create_model(small_config(T, M, vocabulary_size=V)), 0.5)


@pytest.fixture(scope="module")
def drawn():
    random = np.random.default_rng(0)
    lengths = np.array([[3, 2, 1, 3], [1, 3, 2, 2], [3, 3, 3, 1]])
    return random.integers(0, V, (3, P)), random.integers(0, V, (3, 4, A)), lengths


def greedy(model, prompt, memory_length):
    written, _ = txl_tf.generate(
        model,
        prompt[None].astype("int32"),
        num_tokens=A,
        sampler=GreedySampler(),
        memory_length=memory_length,
    )
    return written[0]


def test_nats_are_those_of_each_answer_read_by_itself(model, drawn):
    prompts, answers, lengths = drawn
    scores = AnswerScorer(model, M, num_rows=3, jit_compile=False)(prompts, answers, lengths)
    for row, choice in np.ndindex(3, 4):
        text = np.concatenate([prompts[row], answers[row, choice]]).astype("int32")[None]
        memory = model.initial_memory(1)
        parts = []
        for first in range(0, 4 * T, T):
            piece = slice(first, first + T)
            nll, memory = model.score(text[:, :-1][:, piece], text[:, 1:][:, piece], memory)
            parts.append(np.asarray(nll)[0])
        expected = np.concatenate(parts)[P - 1 :][: lengths[row, choice]].sum()
        assert scores.nats[row, choice] == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_what_greedy_generation_writes_is_greedy_and_nothing_else(model, drawn):
    prompts, answers, lengths = drawn
    written = np.stack([greedy(model, prompt, 4 * T) for prompt in prompts])
    answers, lengths = answers.copy(), np.full_like(lengths, A)
    answers[:, 0] = answers[:, 1] = answers[:, 2] = written
    answers[:, 1, -1] = (written[:, -1] + 1) % V
    answers[:, 2, 0] = (written[:, 0] + 1) % V
    # Generation remembers the whole prompt.
    scores = AnswerScorer(model, 4 * T, num_rows=3, jit_compile=False)(prompts, answers, lengths)
    np.testing.assert_array_equal(scores.is_greedy[:, :3], [[True, False, False]] * 3)
    lengths[:, 1] = A - 1  # without the token that is another one
    scores = AnswerScorer(model, 4 * T, num_rows=3, jit_compile=False)(prompts, answers, lengths)
    np.testing.assert_array_equal(scores.is_greedy[:, :3], [[True, True, False]] * 3)


def test_a_token_beyond_the_reach_has_no_influence_at_all(model, drawn):
    prompts, answers, lengths = drawn
    other = prompts.copy()
    other[:, 2 * T + 3] = (other[:, 2 * T + 3] + 1) % V
    for memory_length, reaches in ((0, False), (1, True), (M, True)):
        scorer = AnswerScorer(model, memory_length, num_rows=3, jit_compile=False)
        first, second = (scorer(each, answers, lengths).nats for each in (prompts, other))
        # One remembered token of the segment before is enough: it has seen the others.
        assert np.all(first != second) if reaches else np.array_equal(first, second)


def test_a_batch_that_is_not_full_has_the_same_scores(model, drawn):
    scorer = AnswerScorer(model, M, num_rows=3, jit_compile=False)
    whole = scorer(*drawn)
    part = scorer(*(each[:2] for each in drawn))
    np.testing.assert_array_equal(part.nats, whole.nats[:2])
    np.testing.assert_array_equal(part.is_greedy, whole.is_greedy[:2])


def test_recurrent_states_are_continued_by_every_answer(drawn):
    config = LSTMConfig(vocabulary_size=V, num_layers=1, hidden_dim=8, segment_length=T)
    lstm = with_drawn_weights(create_model(config), 0.5)
    prompts, answers, lengths = drawn
    scores = AnswerScorer(lstm, None, num_rows=3, jit_compile=False)(prompts, answers, lengths)
    text = np.concatenate([prompts, answers[:, 0]], axis=1).astype("int32")
    nll, _ = lstm.score(text[:, :-1], text[:, 1:], lstm.initial_memory(3))
    counts = np.arange(A) < lengths[:, :1]
    expected = np.sum(np.asarray(nll)[:, P - 1 :] * counts, axis=1)
    np.testing.assert_allclose(scores.nats[:, 0], expected, rtol=1e-5)


def test_what_does_not_fit_is_refused(model, drawn):
    prompts, answers, lengths = drawn
    scorer = AnswerScorer(model, M, num_rows=3, jit_compile=False)
    with pytest.raises(ValueError, match="must be a multiple of 6"):
        scorer(prompts[:, 1:], answers, lengths)
    with pytest.raises(ValueError, match="`prompts`"):
        scorer(np.full_like(prompts, V), answers, lengths)
    with pytest.raises(ValueError, match="`answers`"):
        scorer(prompts, np.full_like(answers, -1), lengths)


def test_scores_that_are_not_finite_are_an_error(drawn):
    broken = with_drawn_weights(create_model(small_config(T, M, vocabulary_size=V)), np.nan)
    with pytest.raises(NonFiniteError, match="12 answers is not finite"):
        AnswerScorer(broken, M, num_rows=3, jit_compile=False)(*drawn)
