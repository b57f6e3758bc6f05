"""Metrics against their formulas and against scikit-learn and SciPy, and where they end."""

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as reference

from txl_tf.config.task import LOWER_IS_BETTER
from txl_tf.errors import NonFiniteError
from txl_tf.tasks.examples import Answer, Example
from txl_tf.tasks.metrics import compute_metrics

LABELS = ("a", "b", "c")
TWO = ("0", "1")


def examples_of(labels, **values):
    names = range(len(labels))
    return [
        Example(name=str(name), where=f"f, line {name}", texts=("t",), label=label, **values)
        for name, label in zip(names, labels, strict=True)
    ]


def f1_of(right, found, label):
    both = np.sum((right == label) & (found == label))
    either = np.sum(right == label) + np.sum(found == label)
    return 2 * both / either if either else 0.0


@pytest.mark.parametrize("seed", range(8))
def test_figures_of_classes(seed):
    source = np.random.default_rng(seed)
    right, found = source.integers(3, size=(2, source.integers(2, 30)))
    examples = examples_of([LABELS[index] for index in right])
    figures = compute_metrics(
        ("accuracy", "f1_macro", "matthews"), "classification", LABELS, examples, found
    )
    confusion = np.zeros((3, 3))
    np.add.at(confusion, (right, found), 1)
    true, predicted, total = confusion.sum(1), confusion.sum(0), confusion.sum()
    covariance = np.trace(confusion) * total - true @ predicted
    spread = (total**2 - true @ true) * (total**2 - predicted @ predicted)
    assert figures == pytest.approx(
        {
            "accuracy": np.mean(right == found),
            "f1_macro": np.mean([f1_of(right, found, label) for label in range(3)]),
            "matthews": covariance / np.sqrt(spread) if spread else 0.0,
        },
        abs=1e-12,
    )
    assert figures["accuracy"] == reference.accuracy_score(right, found)


@pytest.mark.parametrize("seed", range(4))
def test_figures_of_numbers(seed):
    source = np.random.default_rng(seed)
    right, found = source.normal(size=(2, 20)).round(1)
    figures = compute_metrics(
        ("pearson", "spearman", "mean_squared_error"),
        "regression",
        (),
        examples_of(right.tolist()),
        found,
    )
    assert figures == pytest.approx(
        {
            "pearson": np.corrcoef(right, found)[0, 1],
            "spearman": stats.spearmanr(right, found).statistic,
            "mean_squared_error": np.mean((right - found) ** 2),
        },
        abs=1e-12,
    )
    assert {"mean_squared_error"} == LOWER_IS_BETTER


def test_figures_of_choices_by_level():
    names = ("middle/1-0", "middle/1-1", "high/1-0", "own")
    examples = [
        Example(name=name, where="f", texts=("t",), choices=("x", "y", "z"), label=label)
        for name, label in zip(names, (0, 1, 2, 0), strict=True)
    ]
    figures = compute_metrics(
        ("accuracy", "accuracy_by_level"), "choice", (), examples, [0, 2, 2, 1]
    )
    assert figures == {"accuracy": 0.5, "accuracy_middle": 0.5, "accuracy_high": 1.0}
    with pytest.raises(ValueError, match="index of a class or choice"):
        compute_metrics(("accuracy",), "choice", (), examples, [0, 3, 2, 1])


def test_figures_of_spans():
    answer = Answer(text="two words", start=0)
    examples = [
        Example(name="1", where="f", texts=("q", "p"), answers=(answer,)),
        Example(name="2", where="f", texts=("q", "p"), is_answerable=False),
    ]
    figures = compute_metrics(("span_f1",), "span", (), examples, ["two", ""])
    assert figures == pytest.approx({"span_f1": (2 / 3 + 1) / 2, "span_f1_has_answer": 2 / 3})
    figures = compute_metrics(("exact_match",), "span", (), examples, ["two", ""])
    assert set(figures) == {"exact_match", "exact_match_has_answer", "exact_match_no_answer"}


@pytest.mark.parametrize("labels", [("0", "0", "0"), ("0", "1", "1")])
@pytest.mark.parametrize("found", [(0, 0, 0), (1, 1, 1), (1, 0, 0)])
def test_classes_that_are_all_equal_are_no_error(labels, found):
    """Warnings are errors here, those of scikit-learn among them."""
    figures = compute_metrics(
        ("accuracy", "f1", "matthews"), "classification", TWO, examples_of(labels), np.array(found)
    )
    if len(set(labels)) == 1 or len(set(found)) == 1:
        assert figures["matthews"] == 0.0
    else:
        assert figures["matthews"] != 0.0
    if not any(found):
        assert figures["f1"] == 0.0


@pytest.mark.parametrize(
    "right, found",
    [
        ([1.0, 1.0], [1.0, 2.0]),
        ([1.0, 2.0], [3.0, 3.0]),
        ([1.0], [2.0]),
        ([0.0, 1.0, 2.0], [1.0, 1.0, 1.0]),
    ],
)
def test_numbers_that_are_all_equal_have_no_correlation(right, found):
    figures = compute_metrics(
        ("pearson", "spearman", "mean_squared_error"),
        "regression",
        (),
        examples_of(right),
        np.array(found),
    )
    assert (figures["pearson"], figures["spearman"]) == (0.0, 0.0)
    assert figures["mean_squared_error"] == np.mean((np.array(right) - found) ** 2)


def test_a_number_that_is_not_finite_is_refused_with_its_example():
    with pytest.raises(NonFiniteError, match="f, line 1"):
        compute_metrics(
            ("pearson",), "regression", (), examples_of([0.0, 1.0]), np.array([0.0, np.nan])
        )


@pytest.mark.parametrize(
    "names, labels, examples, predictions, says",
    [
        (("acuracy",), TWO, examples_of("01"), [0, 1], "Did you mean accuracy"),
        (("pearson",), TWO, examples_of("01"), [0, 1], "one of accuracy, f1_macro"),
        (
            ("f1",),
            LABELS,
            examples_of("ab"),
            [0, 1],
            "with 3 classes must be one of accuracy",
        ),
        (("accuracy",), TWO, examples_of("01"), [0], "2 examples, 1 predictions"),
        (("accuracy",), TWO, [], [], "0 examples, 0 predictions"),
        (("accuracy",), TWO, examples_of([None]), [0], "none in f, line 0"),
        (("accuracy",), TWO, examples_of("2"), [0], "Received: '2' in f, line 0"),
        (("accuracy",), TWO, examples_of("01"), [0, 2], "index of a class"),
        (("accuracy",), TWO, examples_of("01"), [0, -1], "index of a class"),
        (("accuracy",), TWO, examples_of("01"), [0.0, 1.0], "index of a class"),
        (("accuracy",), TWO, examples_of("01"), [[0], [1]], "index of a class"),
    ],
)
def test_wrong_arguments_are_named(names, labels, examples, predictions, says):
    with pytest.raises(ValueError, match=says):
        compute_metrics(names, "classification", labels, examples, predictions)


def test_questions_without_any_answer_key_have_no_figures():
    example = Example(name="1", where="f, question 7", texts=("q", "p"))
    with pytest.raises(ValueError, match="none in f, question 7"):
        compute_metrics(("span_f1",), "span", (), [example], ["x"])
