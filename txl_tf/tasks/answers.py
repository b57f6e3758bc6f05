"""Answers of a task from the outputs of its model, and their file.

Shape letters used in this module: C classes or choices, L positions of a text.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from txl_tf.config.experiment import TaskConfig
from txl_tf.errors import UsageError
from txl_tf.storage.files import write_file
from txl_tf.storage.staging import require_absent
from txl_tf.storage.untrusted_files import storage_errors
from txl_tf.tasks.encoding import EncodedExamples, WordPlaces
from txl_tf.tasks.examples import Example, TaskData

_LOWEST = float(np.finfo(np.float32).min)


def answers_of(
    task: TaskConfig, encoded: EncodedExamples, outputs: Sequence[np.ndarray]
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Converts the outputs of the model to predictions for `compute_metrics`, and to scores.

    `outputs` has per example logits `(C,)`, a number `(1,)`, or logits of first and last token
    `(2, L)`. Scores are probabilities, the number, or the log-probability of the span relative to
    "no answer".
    """
    if task.kind == "regression":
        numbers = [float(each[0]) for each in outputs]
        return numbers, numbers
    if task.kind == "span":
        passages = [each.texts[1] for each in encoded.examples]
        together = zip(passages, encoded.words, outputs, strict=True)
        answers, scores = zip(*(_span(task, *each) for each in together), strict=True)
        return answers, scores
    counts = [len(each.choices) or task.num_outputs for each in encoded.examples]
    probabilities = [_softmax(each[:count]) for each, count in zip(outputs, counts, strict=True)]
    return [int(np.argmax(each)) for each in probabilities], probabilities


def _softmax(logits: np.ndarray) -> np.ndarray:
    numbers = np.exp(logits.astype(np.float64) - logits.max())
    return numbers / numbers.sum()


def _span(
    task: TaskConfig, passage: str, words: WordPlaces, logits: np.ndarray
) -> tuple[str, float]:
    """Returns the best span of whole words, or "" if "no answer" is better by the margin."""
    is_read = words.last_tokens < logits.shape[1]
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


def check_predictions_file(path: str) -> None:
    """Raises UsageError unless a file is called `.jsonl`, OutputExistsError if it exists."""
    if not path.endswith(".jsonl"):
        raise UsageError(
            "Predictions are written as JSON Lines.", where=path, remedy="Name a .jsonl file."
        )
    require_absent(path)


def write_predictions(
    path: str,
    data: TaskData,
    examples: Sequence[Example],
    predictions: Sequence[Any] | np.ndarray,
    scores: Sequence[Any] | np.ndarray | None = None,
) -> None:
    """Writes a line of JSON for each example: `name`, `prediction`, and `scores` if given.

    A prediction is the name of a class, a number, the index of a choice or a text. Scores of
    classes are an object by class.

    Args:
        path: str. The `.jsonl` file to write, whole or not at all; it may be remote.
        data: `TaskData` of the task.
        examples: sequence of `Example`.
        predictions: sequence or array, as for `compute_metrics`.
        scores: optional sequence or array with the score of each example, or its probabilities.

    Raises:
        OutputExistsError: If the file exists.
        StorageError: If the file cannot be written.
        UsageError: If the file is not called `.jsonl`.
        ValueError: If numbers of predictions and examples differ, or a number is not finite.
    """
    check_predictions_file(path)
    has_classes = data.kind == "classification"
    lines = []
    for number, (example, value) in enumerate(zip(examples, predictions, strict=True)):
        prediction = data.labels[int(value)] if has_classes else _plain(value)
        values = {"name": example.name, "prediction": prediction}
        if scores is not None:
            values["scores"] = score = _plain(scores[number])
            if has_classes:
                values["scores"] = dict(zip(data.labels, score, strict=True))
        lines.append(json.dumps(values, ensure_ascii=False, allow_nan=False) + "\n")
    remedy = "Check the folder, the disk and the permissions."
    with storage_errors("The predictions cannot be written", path, remedy):
        write_file(path, "".join(lines).encode())


def _plain(value: Any) -> Any:
    """Converts arrays and NumPy numbers to JSON types."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
