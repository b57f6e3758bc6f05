"""Metrics against their formulas and slow implementations, and where they end."""

import random
import string

import numpy as np
import pytest
from scipy import stats

from txl_tf.config.task import LOWER_IS_BETTER
from txl_tf.errors import NonFiniteError
from txl_tf.tasks.examples import Answer, Example
from txl_tf.tasks.metrics import compute_metrics, normalized_answer, span_scores

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
        (("f1",), LABELS, examples_of("ab"), [0, 1], "with 3 classes must be one of accuracy"),
        (("accuracy",), TWO, examples_of("01"), [0], "2 examples, 1 predictions"),
        (("accuracy",), TWO, [], [], "0 examples, 0 predictions"),
        (("accuracy",), TWO, examples_of([None]), [0], "none in f, line 0"),
        (("accuracy",), TWO, examples_of("2"), [0], "Received: '2' in f, line 0"),
        (("accuracy",), TWO, examples_of("01"), [0, 2], "index of a class"),
        (("accuracy",), TWO, examples_of("01"), [0.0, 1.0], "index of a class"),
    ],
)
def test_wrong_arguments_are_named(names, labels, examples, predictions, says):
    with pytest.raises(ValueError, match=says):
        compute_metrics(names, "classification", labels, examples, predictions)


def test_questions_without_any_answer_key_have_no_figures():
    example = Example(name="1", where="f, question 7", texts=("q", "p"))
    with pytest.raises(ValueError, match="none in f, question 7"):
        compute_metrics(("span_f1",), "span", (), [example], ["x"])


def slow_words(text):
    """Words of an answer, letter by letter and without regular expressions."""
    letters = [letter for letter in text.lower() if letter not in string.punctuation]
    words, word = [], ""
    for letter in [*letters, " "]:
        if letter.isspace():
            words += [word] if word else []
            word = ""
        else:
            word += letter
    return [each for each in words if each not in ("a", "an", "the")]


def slow_scores(answers, text, has_version_2):
    """Exact match and F1 of one question, by removing words one after another."""
    accepted = [slow_words(answer) for answer in answers]
    if has_version_2:
        accepted = [each for each in accepted if each]
        accepted = accepted if accepted else [[]]
    given = slow_words(text)
    best_exact, best_f1 = 0, 0
    for right in accepted:
        best_exact = max(best_exact, int(right == given))
        left, same = list(right), 0
        for word in given:
            if word in left:
                left.remove(word)
                same += 1
        if has_version_2 and (not right or not given):
            f1 = int(right == given)
        else:
            f1 = 2 * same / (len(right) + len(given)) if same else 0
        best_f1 = max(best_f1, f1)
    return best_exact, best_f1


WORDS = ("the", "The", "a", "an", "cat", "Cat.", "dog", "dog's", "-", "42", "an-cat", "Émile")


def random_text(source, most=4):
    return " ".join(source.choice(WORDS) for _ in range(source.randrange(most)))


@pytest.mark.parametrize("has_version_2", [False, True])
def test_scores_are_those_of_a_slow_implementation(has_version_2):
    source = random.Random(7)
    for _ in range(60):
        examples, texts = [], []
        for number in range(source.randrange(1, 8)):
            is_answerable = not has_version_2 or (number > 0 and source.random() < 0.6)
            answers = tuple(
                Answer(text=random_text(source, 5), start=0)
                for _ in range(source.randrange(1, 4) if is_answerable else 0)
            )
            examples.append(
                Example(
                    name=str(number),
                    where="w",
                    texts=("q", "p"),
                    answers=answers,
                    is_answerable=is_answerable,
                )
            )
            texts.append(random_text(source))
        pairs = [
            slow_scores([answer.text for answer in example.answers], text, has_version_2)
            for example, text in zip(examples, texts, strict=True)
        ]
        parts = {"": pairs}
        if has_version_2:
            kept = list(zip(pairs, examples, strict=True))
            parts["_has_answer"] = [pair for pair, each in kept if each.is_answerable]
            parts["_no_answer"] = [pair for pair, each in kept if not each.is_answerable]
        expected = {}
        for part, found in parts.items():
            if found:
                expected[f"exact_match{part}"] = sum(pair[0] for pair in found) / len(found)
                expected[f"span_f1{part}"] = sum(pair[1] for pair in found) / len(found)
        expected.pop("span_f1_no_answer", None)
        assert span_scores(examples, texts) == pytest.approx(expected, abs=1e-12)


def test_known_scores():
    """Worked by hand: half of the words, articles, and the rules of empty texts."""
    assert normalized_answer("The  Cat's\thome, an hour") == "cats home hour"
    one = Example(name="1", where="w", texts=("q", "p"), answers=(Answer(text="big cat", start=0),))
    none = Example(name="2", where="w", texts=("q", "p"), is_answerable=False)
    assert span_scores([one], ["the cat"]) == {
        "exact_match": 0.0,
        "span_f1": pytest.approx(2 / 3),
    }
    assert span_scores([one, none], ["a big cat", ""])["span_f1"] == 1.0
    assert span_scores([one, none], ["", "cat"])["exact_match_no_answer"] == 0.0
