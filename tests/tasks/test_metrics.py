"""Metrics, compared with their formulas, and their values where they are undefined."""

import numpy as np
import pytest

from txl_tf.config.task import LOWER_IS_BETTER
from txl_tf.tasks.examples import Example
from txl_tf.tasks.metrics import compute_metrics

LABELS = ("a", "b", "c")
TWO = ("0", "1")


def examples_of(labels):
    names = range(len(labels))
    return [
        Example(name=str(name), where=f"f, line {name}", texts=("t",), label=label)
        for name, label in zip(names, labels, strict=True)
    ]


NO_CORRELATION = {"pearson": 0.0, "spearman": 0.0}


@pytest.mark.parametrize(
    ("kind", "labels", "predictions", "expected"),
    [
        # There are 2, 1 and 1 of the classes a, b and c; the predictions are 1, 2 and 1.
        (
            "classification",
            "aabc",
            [0, 1, 1, 2],
            {"accuracy": 3 / 4, "f1_macro": (2 / 3 + 2 / 3 + 1) / 3, "matthews": 7 / 10},
        ),
        # Equal classes cause no warning of scikit-learn, which would be an error in tests.
        ("classification", "000", np.array([1, 0, 0]), {"f1": 0.0, "matthews": 0.0}),
        ("classification", "011", np.array([0, 0, 0]), {"f1": 0.0, "matthews": 0.0}),
        (
            "regression",
            [1.0, 2.0, 3.0],
            [2.0, 4.0, 9.0],
            {"pearson": 7 / 52**0.5, "spearman": 1.0, "mean_squared_error": 41 / 3},
        ),
        ("regression", [1.0, 1.0], [1.0, 2.0], NO_CORRELATION),
        ("regression", [1.0, 2.0], [3.0, 3.0], NO_CORRELATION),
    ],
)
def test_figures_follow_their_formulas(kind, labels, predictions, expected):
    classes = LABELS if "a" in labels else TWO if kind == "classification" else ()
    figures = compute_metrics(tuple(expected), kind, classes, examples_of(labels), predictions)
    assert figures == pytest.approx(expected)
    assert {"mean_squared_error"} == LOWER_IS_BETTER


@pytest.mark.parametrize(
    "names, labels, examples, predictions, says",
    [
        (("acuracy",), TWO, examples_of("01"), [0, 1], "Did you mean accuracy"),
        (("f1",), LABELS, examples_of("ab"), [0, 1], "must be one of accuracy"),
        (("accuracy",), TWO, examples_of("01"), [0], "2 examples, 1 predictions"),
        (("accuracy",), TWO, [], [], "0 examples, 0 predictions"),
        (("accuracy",), TWO, examples_of([None]), [0], "none in f, line 0"),
    ],
)
def test_wrong_arguments_are_named(names, labels, examples, predictions, says):
    with pytest.raises(ValueError, match=says):
        compute_metrics(names, "classification", labels, examples, predictions)
