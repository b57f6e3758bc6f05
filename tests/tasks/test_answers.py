"""Predictions from outputs: class, number, choice and span; and their file."""

import itertools
import json

import numpy as np
import pytest

from tests.tasks.test_example_encoding import BYTES, PASSAGE, example, task_of
from txl_tf.errors import OutputExistsError, StorageError, UsageError
from txl_tf.tasks.answers import answers_of, write_predictions
from txl_tf.tasks.encoding import ExampleEncoder
from txl_tf.tasks.examples import Example, TaskData


def encoded(kind, *examples, **settings):
    task = task_of(kind, **settings)
    return task, ExampleEncoder(task, BYTES).encode(examples)


def test_classes_and_choices_have_probabilities():
    task, examples = encoded("classification", example("a"), example("b"))
    logits = [np.array([1.0, 3.0]), np.array([2.0, -1.0])]
    predictions, scores = answers_of(task, examples, logits)
    assert predictions == [1, 0]
    np.testing.assert_allclose(scores, [np.exp(each) / np.exp(each).sum() for each in logits])
    # Padding of the choices is no answer.
    task, examples = encoded("choice", example("a", choices=("x", "y")))
    predictions, scores = answers_of(task, examples, [np.array([1.0, 2.0, 9.0])])
    assert (predictions, len(scores[0])) == ([1], 2)
    # A number is the output of the head.
    task, examples = encoded("regression", example("a"))
    assert answers_of(task, examples, [np.array([2.5], np.float32)]) == ([2.5], [2.5])


def best_span(places, logits, longest):
    """All spans of whole words, compared one by one."""
    best = (-np.inf, None)
    for first, last in itertools.combinations_with_replacement(range(len(places.starts)), 2):
        if last - first < longest:
            score = logits[0, places.first_tokens[first]] + logits[1, places.last_tokens[last]]
            best = max(best, (score, (first, last)), key=lambda pair: pair[0])
    return best


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("margin", "longest"), [(None, 30), (0.0, 3), (1.5, 1)])
def test_the_best_span_is_the_best_of_all_spans(seed, margin, longest):
    settings = {"answer_margin": margin, "max_answer_words": longest}
    task, result = encoded("span", example("Who?", PASSAGE), **settings)
    logits = np.random.default_rng(seed).normal(size=(2, len(result.token_ids)))
    places = result.words[0]
    score, (first, last) = best_span(places, logits, longest)
    score -= logits[:, -1].sum()
    expected = PASSAGE[places.starts[first] : places.stops[last]]
    if margin is not None and score <= margin:
        expected = ""
    (answer,), (output,) = answers_of(task, result, [logits])
    assert answer == expected
    assert output == pytest.approx(score)


EXAMPLES = [
    Example(name=str(number), where=f"f, line {number}", texts=("t",)) for number in range(2)
]


def data_of(kind, labels=()):
    return TaskData(kind=kind, labels=labels, splits={}, metrics=())


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_classes_are_written_by_name_with_their_probabilities(tmp_path):
    path = tmp_path / "out.jsonl"
    scores = np.array([[0.25, 0.75], [1.0, 0.0]], np.float32)
    labels = ("né", "pos")
    write_predictions(
        str(path), data_of("classification", labels), EXAMPLES, np.array([1, 0]), scores
    )
    assert lines_of(path) == [
        {"name": "0", "prediction": "pos", "scores": {"né": 0.25, "pos": 0.75}},
        {"name": "1", "prediction": "né", "scores": {"né": 1.0, "pos": 0.0}},
    ]


@pytest.mark.parametrize(
    "kind, predictions, expected",
    [
        ("regression", np.array([0.5, 2.0], np.float32), [0.5, 2.0]),
        ("span", ["two words", ""], ["two words", ""]),
    ],
)
def test_other_kinds_are_written_as_they_are(tmp_path, kind, predictions, expected):
    path = tmp_path / "out.jsonl"
    write_predictions(str(path), data_of(kind), EXAMPLES, predictions)
    assert [each["prediction"] for each in lines_of(path)] == expected
    assert all(set(each) == {"name", "prediction"} for each in lines_of(path))


def test_predictions_that_cannot_be_written_are_refused(tmp_path):
    (tmp_path / "out.jsonl").write_text("mine")
    texts, infinite = ["", ""], np.array([0.0, np.inf])
    for name, data, predictions, error, message in (
        ("out.jsonl", data_of("span"), texts, OutputExistsError, "exists"),
        ("no/out.jsonl", data_of("span"), texts, StorageError, "predictions cannot be written"),
        ("out.tsv", data_of("span"), texts, UsageError, "are written as JSON Lines"),
        ("new.jsonl", data_of("classification", ("0", "1")), [0], ValueError, "shorter"),
        ("new.jsonl", data_of("regression"), infinite, ValueError, "Out of range"),
    ):
        with pytest.raises(error, match=message):
            write_predictions(str(tmp_path / name), data, EXAMPLES, predictions)
    assert (tmp_path / "out.jsonl").read_text() == "mine"
