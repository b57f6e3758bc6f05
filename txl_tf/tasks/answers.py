"""Answers of a task from the outputs of its model, and their files.

Shape letters used in this module: C classes or choices, L positions of a text.
"""

import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from txl_tf.config.experiment import TaskConfig, TaskKind
from txl_tf.errors import UsageError
from txl_tf.storage.files import write_file
from txl_tf.storage.staging import require_absent
from txl_tf.storage.untrusted_files import storage_errors
from txl_tf.tasks.encoding import EncodedExamples, WordPlaces
from txl_tf.tasks.examples import TASK_KINDS, Example, TaskData

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


KINDS_BY_ENDING: dict[str, tuple[TaskKind, ...]] = {
    ".jsonl": TASK_KINDS,
    ".json": ("span",),
    ".tsv": ("classification", "regression"),
}
"""Kinds of tasks whose predictions can be written to a file, by the end of its name."""


def check_predictions_file(path: str, kind: TaskKind) -> None:
    """Raises UsageError if a file cannot hold predictions, OutputExistsError if it exists."""
    if kind not in KINDS_BY_ENDING.get(os.path.splitext(path)[1], ()):
        what = f"Predictions of kind {kind} cannot be written to a file with this ending."
        raise UsageError(what, where=path, remedy="Name a .jsonl file.")
    require_absent(path)


def write_predictions(
    path: str,
    data: TaskData,
    examples: Sequence[Example],
    predictions: Sequence[Any] | np.ndarray,
    scores: Sequence[Any] | np.ndarray | None = None,
) -> None:
    """Writes predictions in the format that the end of the file name stands for.

    | ending | kinds | content |
    |---|---|---|
    | `.jsonl` | all | for each example a line of JSON: `name`, `prediction`, `scores` if given |
    | `.tsv` | classes, numbers | a submission to GLUE's server; numbers are clipped to 0 to 5 |
    | `.json` | span | an object of answers by question id, for SQuAD's evaluation script |

    A prediction is the name of a class, a number, the index of a choice or a text. Scores of
    classes are an object by class.

    Args:
        path: str. The file to write, whole or not at all; it may be remote. GLUE's server needs
            names such as `SST-2.tsv`.
        data: `TaskData` of the task.
        examples: sequence of `Example`; in a submission to GLUE their names are its indices.
        predictions: sequence or array, as for `compute_metrics`.
        scores: optional sequence or array with the score of each example, or its probabilities.

    Raises:
        OutputExistsError: If the file exists.
        StorageError: If the file cannot be written.
        UsageError: If the format does not have the kind of the task.
        ValueError: If numbers of predictions and examples differ, a number is not finite, or a
            name in a submission to GLUE is not an index.
    """
    check_predictions_file(path, data.kind)
    has_classes = data.kind == "classification"
    shown = [data.labels[int(each)] if has_classes else _plain(each) for each in predictions]
    together = list(zip(examples, shown, strict=True))
    if path.endswith(".json"):
        answers = {example.name: text for example, text in together}
        lines = [json.dumps(answers, ensure_ascii=False, indent=1)]
    elif path.endswith(".tsv"):
        lines = ["index\tprediction"]
        for example, value in together:
            if not (example.name.isascii() and example.name.isdigit()):
                raise ValueError(f"A name in .tsv must be numeric. Received: {example.name[:60]!r}")
            value = value if has_classes else f"{np.clip(value, 0, 5):.3f}"
            lines.append(f"{example.name}\t{value}")
    else:
        lines = []
        for number, (example, value) in enumerate(together):
            values = {"name": example.name, "prediction": value}
            if scores is not None:
                values["scores"] = score = _plain(scores[number])
                if has_classes:
                    values["scores"] = dict(zip(data.labels, score, strict=True))
            lines.append(json.dumps(values, ensure_ascii=False, allow_nan=False))
    remedy = "Check the folder, the disk and the permissions."
    with storage_errors("The predictions cannot be written", path, remedy):
        write_file(path, "".join(f"{line}\n" for line in lines).encode())


def _plain(value: Any) -> Any:
    """Converts arrays and NumPy numbers to JSON types."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
