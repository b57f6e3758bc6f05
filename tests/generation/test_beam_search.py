"""Beam search against all continuations there are."""

import itertools

import numpy as np
import pytest

from tests.generation.models import expressive, prompt
from tests.toy_batches import VOCABULARY_SIZE
from txl_tf.generation import GenerationSession, generate
from txl_tf.samplers import BeamSampler, GreedySampler

NUM_TOKENS = 3
EVERY_PAIR = VOCABULARY_SIZE**2
"""As many beams lose no beginning of a text of three tokens."""


@pytest.fixture(scope="module")
def model():
    return expressive()


def scores_of_all(model, row):
    """All texts of three tokens, and their log-probabilities token by token."""
    texts = np.array(list(itertools.product(range(VOCABULARY_SIZE), repeat=NUM_TOKENS)))
    whole = np.concatenate([np.tile(row, (len(texts), 1)), texts], axis=1)
    nll, _ = model.score(whole[:, :-1], whole[:, 1:], model.initial_memory(len(texts), 0))
    return texts, -np.array(nll)[:, len(row) - 1 :]


def best_of_all(model, row, count, stop):
    """The best texts, cut behind the first stop token."""
    texts, log_probs = scores_of_all(model, row)
    totals = {}
    for text, of_text in zip(texts.tolist(), log_probs, strict=True):
        length = text.index(stop) + 1 if stop in text else NUM_TOKENS
        totals[tuple(text[:length])] = of_text[:length].sum()
    return sorted(totals.items(), key=lambda item: -item[1])[:count]


def test_enough_beams_find_the_best_texts_of_all(model):
    stop = 4
    prompt_ids = [prompt(4, 1)[0], prompt(9, 1)[0]]
    written, _ = generate(
        model,
        prompt_ids,
        max_tokens=NUM_TOKENS,
        sampler=BeamSampler(EVERY_PAIR, return_all_beams=True),
        stop_token_ids=[stop],
    )
    assert written.shape == (2, EVERY_PAIR, NUM_TOKENS)
    for row, beams in zip(prompt_ids, written, strict=True):
        found = [tuple(beam[beam >= 0].tolist()) for beam in beams[:20]]
        assert found == [text for text, _ in best_of_all(model, row, 20, stop)]


def by_reading_again(model, row, num_tokens, num_beams):
    """Beam search with lists, that reads the whole texts for every token."""
    texts, scores = np.zeros((1, 0), int), np.zeros(1)
    for _ in range(num_tokens):
        whole = np.concatenate([np.tile(row, (len(texts), 1)), texts], axis=1)
        log_probs, _ = model.log_probs(whole, model.initial_memory(len(texts), 0))
        totals = (scores[:, None] + log_probs[:, -1]).numpy().ravel()
        best = np.argsort(-totals)[:num_beams]
        parents, tokens = np.divmod(best, VOCABULARY_SIZE)
        texts = np.concatenate([texts[parents], tokens[:, None]], axis=1)
        scores = totals[best]
    return texts.tolist()


def test_memory_goes_with_the_beams(model):
    row = prompt(6, 1)[0]
    session = GenerationSession(
        model, BeamSampler(4, return_all_beams=True), num_rows=1, jit_compile=False
    )
    beams = session.write([row], max_tokens=9)[0]
    assert beams.tolist() == by_reading_again(model, row, 9, 4)
    # What was written since stays with the best beam.
    further = prompt(3, 1)[0]
    more = session.write([further], max_tokens=2)[0]
    text = np.concatenate([row, beams[0], further])
    assert more.tolist() == by_reading_again(model, text, 2, 4)


@pytest.mark.slow
def test_one_compiled_beam_is_greedy(model):
    greedy, _ = generate(model, prompt(5), max_tokens=7, sampler=GreedySampler())
    beam, _ = generate(model, prompt(5), max_tokens=7, sampler=BeamSampler(1), jit_compile=True)
    np.testing.assert_array_equal(beam, greedy)


def test_nothing_is_said_twice_under_a_large_penalty(model):
    written, _ = generate(
        model, [[4, 7]], max_tokens=8, sampler=BeamSampler(3), repetition_penalty=1e6
    )
    assert len({4, 7, *written[0].tolist()}) == 10
