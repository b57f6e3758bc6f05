"""Answers of a task from the outputs of its model.

Shape letters used in this module: C classes or choices, L positions of a text, W words.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from txl_tf.config.task import TaskConfig
from txl_tf.tasks.example_encoding import EncodedExamples, WordPlaces

_LOWEST = float(np.finfo(np.float32).min)


def answers_of(
    task: TaskConfig, encoded: EncodedExamples, outputs: Sequence[np.ndarray]
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Converts the outputs of the model to predictions for `compute_metrics`, and to scores.

    `outputs` has per example logits `(C,)`, a number `(1,)`, label logits `(L, C)`, or logits of
    first and last token `(2, L)`. Scores are probabilities, the number, the probability of each
    word's label, or the log-probability of the span relative to "no answer".
    """
    if task.kind == "regression":
        numbers = [float(each[0]) for each in outputs]
        return numbers, numbers
    pairs: list[tuple[Any, Any]]
    if task.kind == "tokens":
        pairs = [_labels(task, *each) for each in zip(encoded.words, outputs, strict=True)]
    elif task.kind == "span":
        passages = [each.texts[1] for each in encoded.examples]
        together = zip(passages, encoded.words, outputs, strict=True)
        pairs = [_span(task, *each) for each in together]
    else:
        counts = [len(each.choices) or task.num_outputs for each in encoded.examples]
        probabilities = [
            _softmax(each[:count]) for each, count in zip(outputs, counts, strict=True)
        ]
        return [int(np.argmax(each)) for each in probabilities], probabilities
    return [answer for answer, _ in pairs], [score for _, score in pairs]


def _softmax(logits: np.ndarray) -> np.ndarray:
    numbers = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return numbers / numbers.sum(axis=-1, keepdims=True)


def _labels(
    task: TaskConfig, words: WordPlaces, logits: np.ndarray
) -> tuple[tuple[str, ...], list[float]]:
    """Returns the label of each word; words that were not read get the first label."""
    assert task.labels is not None
    probabilities = np.zeros((len(words.last_tokens), len(task.labels)))
    is_read = words.last_tokens < len(logits)
    probabilities[is_read] = _softmax(logits[words.last_tokens[is_read]])
    labels = tuple(task.labels[number] for number in probabilities.argmax(axis=1))
    return labels, probabilities.max(axis=1).tolist()


def _span(
    task: TaskConfig, passage: str, words: WordPlaces, logits: np.ndarray
) -> tuple[str, float]:
    """Returns the best span of whole words, or "" if "no answer" is better by the margin."""
    num_read = logits.shape[1]
    is_read = words.last_tokens < num_read
    firsts, lasts = words.first_tokens[is_read], words.last_tokens[is_read]
    nothing = float(logits[0, -1] + logits[1, -1])
    if not len(firsts):
        return "", _LOWEST
    starts, stops = logits[0, firsts].astype(np.float64), logits[1, lasts].astype(np.float64)
    best, place = -np.inf, (0, 0)
    for length in range(min(task.max_answer_words, len(firsts))):
        sums = starts[: len(starts) - length] + stops[length:]
        first = int(sums.argmax())
        if sums[first] > best:
            best, place = float(sums[first]), (first, first + length)
    score = best - nothing
    if task.answer_margin is not None and score <= task.answer_margin:
        return "", score
    return passage[words.starts[is_read][place[0]] : words.stops[is_read][place[1]]], score
