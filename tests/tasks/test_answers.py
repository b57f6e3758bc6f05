"""Predictions of classes and of numbers from outputs, and the file of predictions."""

import json

import numpy as np
import pytest

from tests.tasks.small_examples import task_of
from txl_tf.errors import OutputExistsError, StorageError, UsageError
from txl_tf.tasks.answers import answers_of, write_predictions
from txl_tf.tasks.examples import Example, TaskData


def test_classes_have_probabilities_and_a_number_is_the_output():
    logits = np.array([[1.0, 3.0], [2.0, -1.0]])
    predictions, scores = answers_of(task_of("classification"), logits)
    assert predictions == [1, 0]
    np.testing.assert_allclose(scores, [np.exp(each) / np.exp(each).sum() for each in logits])
    assert answers_of(task_of("regression"), np.array([[2.5]], np.float32)) == ([2.5], [2.5])


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


def test_numbers_are_written_as_they_are(tmp_path):
    path = tmp_path / "out.jsonl"
    numbers = np.array([0.5, 2.0], np.float32)
    write_predictions(str(path), data_of("regression"), EXAMPLES, numbers)
    assert [each["prediction"] for each in lines_of(path)] == [0.5, 2.0]
    assert all(set(each) == {"name", "prediction"} for each in lines_of(path))


def test_predictions_that_cannot_be_written_are_refused(tmp_path):
    (tmp_path / "out.jsonl").write_text("mine")
    regression, numbers, infinite = data_of("regression"), [0.5, 2.0], np.array([0.0, np.inf])
    for name, data, predictions, error, message in (
        ("out.jsonl", regression, numbers, OutputExistsError, "exists"),
        ("no/out.jsonl", regression, numbers, StorageError, "predictions cannot be written"),
        ("out.tsv", regression, numbers, UsageError, "are written as JSON Lines"),
        ("new.jsonl", data_of("classification", ("0", "1")), [0], ValueError, "shorter"),
        ("new.jsonl", regression, infinite, ValueError, "Out of range"),
    ):
        with pytest.raises(error, match=message):
            write_predictions(str(tmp_path / name), data, EXAMPLES, predictions)
    assert (tmp_path / "out.jsonl").read_text() == "mine"
