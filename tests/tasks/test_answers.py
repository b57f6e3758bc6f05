"""Answers from outputs: the most probable class, label and span."""

import itertools

import numpy as np
import pytest

from tests.tasks.test_example_encoding import BYTES, PASSAGE, example, task_of
from txl_tf.tasks.answers import answers_of
from txl_tf.tasks.encoding import ExampleEncoder


def encoded(kind, *examples, **settings):
    task = task_of(kind, **settings)
    return task, ExampleEncoder(task, BYTES).encode(examples)


def softmax(logits):
    return np.exp(logits) / np.exp(logits).sum()


def test_classes_and_choices_have_probabilities():
    task, found = encoded("classification", example("a"), example("b"))
    logits = [np.array([1.0, 3.0]), np.array([2.0, -1.0])]
    predictions, scores = answers_of(task, found, logits)
    assert predictions == [1, 0]
    np.testing.assert_allclose(scores, [softmax(each) for each in logits])
    # What pads the choices of an example is not among its answers.
    task, found = encoded("choice", example("a", choices=("x", "y")))
    predictions, scores = answers_of(task, found, [np.array([1.0, 2.0, 9.0])])
    assert (predictions, len(scores[0])) == ([1], 2)


def test_numbers_are_what_the_head_says():
    task, found = encoded("regression", example("a"))
    assert answers_of(task, found, [np.array([2.5], np.float32)]) == ([2.5], [2.5])


def best_span(places, logits, longest):
    """All spans of whole words, compared one by one."""
    best = (-np.inf, None)
    for first, last in itertools.combinations_with_replacement(range(len(places.starts)), 2):
        if last - first < longest:
            score = logits[0, places.first_tokens[first]] + logits[1, places.last_tokens[last]]
            best = max(best, (score, (first, last)), key=lambda pair: pair[0])
    return best


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("margin", "longest"), [(None, 30), (0.0, 3), (1.5, 1)])
def test_the_best_span_is_that_of_all_spans(seed, margin, longest):
    settings = {"answer_margin": margin, "max_answer_words": longest}
    task, found = encoded("span", example("Who?", PASSAGE), **settings)
    logits = np.random.default_rng(seed).normal(size=(2, len(found.token_ids)))
    places = found.words[0]
    score, (first, last) = best_span(places, logits, longest)
    score -= logits[:, -1].sum()
    expected = PASSAGE[places.starts[first] : places.stops[last]]
    if margin is not None and score <= margin:
        expected = ""
    (answer,), (shown,) = answers_of(task, found, [logits])
    assert answer == expected
    assert shown == pytest.approx(score)
